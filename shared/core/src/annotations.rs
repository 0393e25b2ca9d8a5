//! The settings of a Stack that its annotations make. They are annotations, because a change of the
//! spec would start a run.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::{
    ApprovalPolicy, ApprovalSettings, ChangeRequest, DriftSettings, Ignored, InvalidWindow, PlanHash, Remediate, Schedule, Ttl,
    Window, metadata as names,
};

/// The annotations with a few possible values, and these.
const WORDS: [(&str, &[&str]); 7] = [
    (names::INPUTS, &[names::IGNORE]),
    (names::SEAL, &[names::NEVER]),
    (names::PULL_REQUESTS, &[names::PREVIEW]),
    (names::SUSPEND, &["true", "false"]),
    (names::DRIFT_SUSPEND, &["true", "false"]),
    (names::CAPACITY, &[names::SPOT, names::ON_DEMAND]),
    (names::CACHE, &[names::OFF, names::REFRESH]),
];

/// The annotations of a Stack. The error of a setting is a message that names the annotation, its
/// value and the remedy.
#[derive(Clone, Copy, Debug)]
pub struct Annotations<'a>(pub &'a BTreeMap<String, String>);

impl<'a> Annotations<'a> {
    fn get(self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns whether they forbid new runs.
    #[must_use]
    pub fn suspend(self) -> bool {
        self.get(names::SUSPEND) == Some("true")
    }

    /// Returns whether a change of what the Stack reads starts no run.
    #[must_use]
    pub fn ignore_inputs(self) -> bool {
        self.get(names::INPUTS).is_some()
    }

    /// The pull request that the Stack previews.
    #[must_use]
    pub fn change_request(self) -> Option<ChangeRequest> {
        self.get(names::CHANGE_REQUEST).and_then(ChangeRequest::parse)
    }

    /// The Stack whose plan it previews.
    #[must_use]
    pub fn pull_request_of(self) -> Option<&'a str> {
        self.get(names::PULL_REQUEST_OF)
    }

    /// What it says about the Stacks that preview its plan.
    #[must_use]
    pub fn pull_requests(self) -> Option<&'a str> {
        self.get(names::PULL_REQUESTS)
    }

    /// Returns whether the inputs of the Stack's runs are not kept for its destroy.
    #[must_use]
    pub(crate) fn never_seals(self) -> bool {
        self.get(names::SEAL).is_some()
    }

    /// The capacity of a run, which `on_demand` demands without Spot; `None` leaves it to the
    /// launcher.
    pub(crate) fn capacity(self, on_demand: bool) -> Option<&'a str> {
        if on_demand { Some(names::ON_DEMAND) } else { self.get(names::CAPACITY) }
    }

    /// The first error of a setting that every Stack can have. `labels` and `created` are the
    /// Stack's.
    #[must_use]
    pub fn refused(self, labels: &BTreeMap<String, String>, created: Option<Timestamp>) -> Option<String> {
        let word = WORDS.iter().find_map(|(name, words)| {
            let other = self.get(name).filter(|value| !words.contains(value))?;
            let words = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
            Some(format!("annotation {name} is {other:?}; write {words}, or remove it"))
        });
        word.or_else(|| self.drift().err())
            .or_else(|| self.window().err())
            .or_else(|| self.ttl(labels, created).err())
            .or_else(|| self.approval().err())
    }

    /// The maintenance window.
    ///
    /// # Errors
    /// One of its annotations is invalid, or one is set without the other.
    pub fn window(self) -> Result<Option<Window>, String> {
        let half = |set: &str, absent: &str| format!("annotation {set} is set without {absent}; set both, or remove it");
        let (opens, length) = match (self.get(names::WINDOW_SCHEDULE), self.get(names::WINDOW_DURATION)) {
            (None, None) => return Ok(None),
            (Some(opens), Some(length)) => (opens, length),
            (Some(_), None) => return Err(half(names::WINDOW_SCHEDULE, names::WINDOW_DURATION)),
            (None, Some(_)) => return Err(half(names::WINDOW_DURATION, names::WINDOW_SCHEDULE)),
        };
        Window::parse(opens, self.get(names::WINDOW_TIME_ZONE), length).map(Some).map_err(|invalid| match invalid {
            InvalidWindow::Opens(why) => format!("annotation {} is {why}", names::WINDOW_SCHEDULE),
            InvalidWindow::Length(why) => format!("annotation {} is {why}", names::WINDOW_DURATION),
        })
    }

    /// The limited life of the Stack with these labels, which was created then.
    ///
    /// # Errors
    /// The annotation is invalid.
    pub fn ttl(self, labels: &BTreeMap<String, String>, created: Option<Timestamp>) -> Result<Option<Ttl>, String> {
        let (Some(text), Some(created)) = (self.get(names::TTL), created) else { return Ok(None) };
        Ttl::parse(text, created, self.applied_by(labels)).map(Some).map_err(|why| format!("annotation {} is {why}", names::TTL))
    }

    /// What applied the Stack from a source, by the marks of Flux and Argo CD.
    fn applied_by(self, labels: &BTreeMap<String, String>) -> Option<String> {
        let by_flux = [("Kustomization", "kustomize"), ("HelmRelease", "helm")].into_iter().find_map(|(kind, controller)| {
            let label = |part: &str| labels.get(&format!("{controller}.toolkit.fluxcd.io/{part}"));
            Some(format!("{kind} {}/{}", label("namespace")?, label("name")?))
        });
        by_flux.or_else(|| Some(format!("Application of Argo CD {:?}", self.get("argocd.argoproj.io/tracking-id")?)))
    }

    /// The settings of drift checks; `None` without checks.
    ///
    /// # Errors
    /// The schedule, its time zone or the list of ignored properties is invalid.
    pub fn drift(self) -> Result<Option<DriftSettings>, String> {
        let zone = self.get(names::DRIFT_TIME_ZONE);
        let Some(text) = self.get(names::DRIFT_SCHEDULE) else { return Ok(None) };
        let schedule = Schedule::parse(text, zone).map_err(|why| format!("annotation {} is {why}", names::DRIFT_SCHEDULE))?;
        if let (Schedule::Every(_), Some(zone)) = (&schedule, zone) {
            let remedy = "remove it, or write the schedule as five cron fields";
            return Err(format!("annotation {} is {zone:?}, but an interval has no time zone; {remedy}", names::DRIFT_TIME_ZONE));
        }
        let remediate = self.get(names::REMEDIATE).map(|word| match word {
            names::ALWAYS => Remediate::Always,
            check => Remediate::Check(check.to_owned()),
        });
        let adopt = self.get(names::ADOPT).filter(|check| !check.is_empty()).map(str::to_owned);
        let is_paused = self.get(names::DRIFT_SUSPEND) == Some("true");
        let ignored = self.get(names::DRIFT_IGNORE).filter(|text| !text.is_empty()).map(Ignored::parse_all).transpose();
        let ignored = ignored.map_err(|why| format!("annotation {} is {why}", names::DRIFT_IGNORE))?.unwrap_or_default();
        Ok(Some(DriftSettings { schedule: Some(schedule).filter(|_| !is_paused), adopt, remediate, ignored }))
    }

    /// The approvals that the Stack asks for; `None` if it asks for none.
    ///
    /// # Errors
    /// The annotation or one of the answers is invalid.
    pub fn approval(self) -> Result<Option<ApprovalSettings>, String> {
        let Some(policy) = self.get(names::APPROVAL) else { return Ok(None) };
        let policy = ApprovalPolicy::parse(policy).map_err(|why| format!("annotation {} is {why}", names::APPROVAL))?;
        Ok(Some(ApprovalSettings { policy, ..self.answers()? }))
    }

    /// The settings of plans that only the cluster asks for.
    ///
    /// # Errors
    /// One of the answers is invalid.
    pub fn answers(self) -> Result<ApprovalSettings, String> {
        let word = |name| self.get(name).filter(|text| !text.is_empty());
        let hash = |name| {
            let Some(text) = word(name) else { return Ok(None) };
            let remedy = "write all 64 digits of status.driftless.plan.hash, or remove it";
            PlanHash::parse(text).map(Some).ok_or_else(|| format!("annotation {name} is {text:?}; {remedy}"))
        };
        let ttl = match self.get(names::PLAN_TTL) {
            None => ApprovalSettings::default().ttl,
            Some(text) => text.parse().ok().filter(|ttl: &SignedDuration| ttl.as_secs() > 0).ok_or_else(|| {
                format!("annotation {} is {text:?}; write a duration of a second or more, such as 72h", names::PLAN_TTL)
            })?,
        };
        Ok(ApprovalSettings {
            policy: ApprovalPolicy::none(),
            approved: hash(names::APPROVE)?,
            approved_by: word(names::APPROVED_BY).map(str::to_owned),
            rejected: hash(names::REJECT)?,
            ttl,
        })
    }
}
