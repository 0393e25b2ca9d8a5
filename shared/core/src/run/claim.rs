use super::UpdateFacts;
use crate::Uid;

/// The claim of a Pulumi stack, which exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimFacts<'a> {
    /// The run that holds it.
    pub holder: Option<&'a Uid>,
    /// A drift check holds it.
    pub is_of_check: bool,
    /// It has the mark of a run that waits for it.
    pub is_marked: bool,
}

/// What a run does about a claim that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimPlan {
    /// Nothing: the run holds it.
    Keep,
    /// Wait for its release.
    Wait {
        /// Mark it first: the recorder wakes waiting runs only for a claim with a mark.
        mark: bool,
        /// End the run that holds it.
        preempt: bool,
    },
}

/// Decides what a run does about a claim that exists. Any other run preempts a drift check.
#[must_use]
pub fn plan_claim(run: &Uid, is_check: bool, claim: ClaimFacts<'_>) -> ClaimPlan {
    if claim.holder == Some(run) {
        return ClaimPlan::Keep;
    }
    ClaimPlan::Wait { mark: !claim.is_marked, preempt: !is_check && claim.is_of_check }
}

/// Returns whether the sweep hints the run that holds a claim, by the Update that the claim names.
/// The sweep hints every incomplete Update. The Update may be deleted or unreadable, or complete
/// only by a status that a tenant wrote.
#[must_use]
pub fn is_swept(holder: Option<&Uid>, update: Option<(&Uid, &UpdateFacts)>) -> bool {
    update.is_some_and(|(uid, update)| holder == Some(uid) && !update.is_complete())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn only_another_run_waits_and_only_a_drift_check_gives_way() {
        let (run, other) = (Uid::from("run"), Uid::from("other"));
        for (holder, is_check, is_of_check, is_marked, expected) in [
            (Some(&run), false, true, false, ClaimPlan::Keep),
            (Some(&other), false, false, false, ClaimPlan::Wait { mark: true, preempt: false }),
            (Some(&other), false, false, true, ClaimPlan::Wait { mark: false, preempt: false }),
            (Some(&other), false, true, true, ClaimPlan::Wait { mark: false, preempt: true }),
            (Some(&other), true, true, false, ClaimPlan::Wait { mark: true, preempt: false }),
            (None, false, false, false, ClaimPlan::Wait { mark: true, preempt: false }),
        ] {
            let claim = ClaimFacts { holder, is_of_check, is_marked };
            assert_eq!(plan_claim(&run, is_check, claim), expected, "{claim:?}");
        }
    }

    #[test]
    fn sweep_hints_the_holder_only_by_its_own_incomplete_update() {
        let (holder, other) = (Uid::from("holder"), Uid::from("other"));
        let live = UpdateFacts::default();
        let complete = UpdateFacts { complete_since: Some(Timestamp::UNIX_EPOCH), ..live };
        assert!(is_swept(Some(&holder), Some((&holder, &live))));
        for (claimed, update) in [
            (Some(&holder), Some((&holder, &complete))),
            (Some(&holder), Some((&other, &live))),
            (Some(&holder), None),
            (None, Some((&other, &live))),
        ] {
            assert!(!is_swept(claimed, update), "{claimed:?} {update:?}");
        }
    }
}
