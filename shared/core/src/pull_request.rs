//! The plan of a pull request: a Stack that previews makes the plan that another one will have
//! after the merge, and a user can approve that plan before it.

use jiff::Timestamp;

use crate::{
    EarlyApproval, Guard, Operation, PlanHash, PlanState, PlannedChanges, Proposal, Run, RunOutcome, Stack, Wish,
    metadata as names,
};

impl Stack {
    /// Returns whether other Stacks may make its plan for a pull request.
    fn consents(&self) -> bool {
        self.pull_requests.as_deref() == Some(names::PREVIEW)
    }

    /// Returns whether an approval of such a plan counts for it.
    pub(crate) fn takes_early(&self) -> bool {
        self.consents() && !self.deleting && self.pull_request_of.is_none()
    }

    /// The Stack whose plan it shows. A deletion shows none, and has plans of its own.
    #[must_use]
    pub fn shown_for(&self) -> Option<&String> {
        self.pull_request_of.as_ref().filter(|_| self.spec.preview && !self.deleting)
    }

    /// The approved plan that the Stack has not shown itself. A pull request may have shown it.
    #[must_use]
    pub fn early_approval(&self) -> Option<&PlanHash> {
        let status = &self.status.plan;
        let approved = self.approval.as_ref().unwrap_or(&self.answers).approved.as_ref()?;
        let own = status.proposal.as_ref().filter(|proposal| proposal.state.is_pending());
        let known = [
            own.and_then(|proposal| Some(&proposal.plan.as_ref()?.hash)),
            status.early.as_ref().map(|early| &early.hash),
            status.spent.as_ref(),
        ];
        Some(approved).filter(|_| self.takes_early() && !known.contains(&Some(approved)))
    }
}

/// Why a Stack cannot make the plan of the Stack that it names, as a message; `None` if it can, or
/// names none. `named` is that Stack, if it exists.
#[must_use]
pub fn unfit_pull_request(stack: &Stack, named: Option<&Stack>) -> Option<String> {
    let of = stack.pull_request_of.as_ref()?;
    let annotation = format!("annotation {} is {of:?}", names::PULL_REQUEST_OF);
    if !stack.spec.preview {
        return Some(format!("{annotation}, but spec.preview is false; set it to true, or remove the annotation"));
    }
    let Some(named) = named else {
        let place = &stack.namespace;
        return Some(format!("{annotation}, and namespace {place:?} has no such Stack; create it, or correct the annotation"));
    };
    if named.spec.preview {
        return Some(format!("{annotation}, which only previews; name the Stack that applies the change"));
    }
    if !named.consents() {
        let found = named.pull_requests.as_ref().map_or_else(|| "missing".to_owned(), |value| format!("{value:?}"));
        let (consent, word) = (names::PULL_REQUESTS, names::PREVIEW);
        return Some(format!(
            "{annotation}, whose annotation {consent} is {found}; set that to {word:?}, or remove the annotation"
        ));
    }
    let account = |stack: &Stack| stack.spec.service_account_name.clone().filter(|name| !name.is_empty());
    let theirs = account(named).unwrap_or_else(|| "default".into());
    match account(stack) {
        None => Some(format!("{annotation}, and spec.serviceAccountName is missing; name a ServiceAccount that may only read")),
        Some(ours) if ours == theirs => {
            let remedy = "name another one, which may only read";
            Some(format!("{annotation}, and spec.serviceAccountName is {ours:?}, as in that Stack; {remedy}"))
        }
        Some(_) => None,
    }
}

/// The plan of a pull request, from the end of the run that made it. Its hash is the one to approve
/// before the merge.
pub(crate) fn shown(run: &Run, outcome: &RunOutcome) -> Option<Proposal> {
    let plan = outcome.plan.as_deref().filter(|plan| outcome.succeeded && plan.operation == Operation::Up)?;
    let hash = plan.early_hash()?;
    Some(Proposal {
        state: PlanState::Preview,
        plan: Some(PlannedChanges { hash, ..plan.clone().shortened() }),
        wish: Wish { inputs: None, ..Wish::of(run, outcome, None) },
        update: run.name.clone(),
        offered: false,
        demanded: None,
        by: None,
        expires: None,
        note: String::new(),
        failures: 0,
        failed_at: None,
    })
}

/// Keeps the approval of a plan that only a pull request shows yet, if the cluster checked it.
pub(crate) fn approve_early(stack: &mut Stack, guard: &Guard, now: Timestamp) {
    let fresh = stack.early_approval().cloned();
    let takes = stack.takes_early() && *guard == Guard::Intact;
    let plan = &mut stack.status.plan;
    let Some(settings) = &stack.approval else { return };
    plan.early.take_if(|early| settings.approved.as_ref() != Some(&early.hash));
    // Before anything is decided by it.
    if let Some(early) = plan.early.take_if(|_| !takes) {
        plan.spent = Some(early.hash);
    }
    let is_checked = plan.takes_early && takes;
    if let Some((hash, expires)) = fresh.filter(|_| is_checked).zip(now.checked_add(settings.ttl).ok()) {
        plan.early = Some(EarlyApproval { hash, by: settings.approved_by.clone(), expires });
    }
}
