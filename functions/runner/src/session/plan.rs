//! The run of a guarded Stack: it makes a plan, and applies exactly the approved one.

use std::{
    fs, io,
    path::{Path, PathBuf},
    rc::Rc,
};

use driftless_contract::{FailureReason, Operation, PlanHash, PlanRequest, PlannedChanges};

use super::{EVENTS_EVERY, Report, Session, not_run};
use crate::{
    arguments::{self, Call},
    events::{Events, pending_in_state},
    failure::Failure,
    plan::{self, Basis, Key, Preview, State, Unstable},
};

/// The file of a plan, which has secrets in clear. Removed when it is dropped.
struct PlanFile(PathBuf);

impl Drop for PlanFile {
    fn drop(&mut self) {
        // A preview that failed wrote none.
        let _: io::Result<()> = fs::remove_file(&self.0);
    }
}

impl Session<'_> {
    /// Makes the plan, and applies it if it is the approved one. Returns the events of what ran
    /// last.
    pub(super) async fn operate_by_plan(&self, request: &PlanRequest, report: &mut Report) -> Result<Events, Failure> {
        let basis = self.basis(request).await?;
        let state = self.state(report).await?;
        let file = PlanFile(self.scratch.join("plan.1"));
        let (mut preview, events) = self.preview("plan.1", &file.0, request).await?;
        report.changes.clone_from(&events.changes);
        if preview.is_new() {
            let file = PlanFile(self.scratch.join("plan.2"));
            let (second, _) = self.preview("plan.2", &file.0, request).await?;
            preview.settle(&second).map_err(|Unstable { urns }| self.unstable(&urns))?;
        }
        match self.judge_plan(&basis, &preview, &state, report)? {
            Some(hash) => self.apply(&hash, &preview, (&file.0, request), report).await,
            None => Ok(events),
        }
    }

    /// Makes the plan of a destroy whose stack does not exist.
    pub(super) async fn plan_nothing(&self, request: &PlanRequest, report: &mut Report) -> Result<(), Failure> {
        let basis = self.basis(request).await?;
        self.judge_plan(&basis, &Preview::default(), &State::default(), report).map(drop)
    }

    async fn basis<'r>(&self, request: &'r PlanRequest) -> Result<Basis<'r>, Failure> {
        if request.approved.is_some() && self.spec.is_preview() {
            let operation = self.spec.operation.as_str();
            return Err(Failure::unknown(format!(
                "a preview cannot apply an approved plan; the type of the Update is {operation:?}"
            )));
        }
        let key = Key::parse(&request.key).ok_or_else(|| Failure::unknown("the key of the plan is not 64 digits of hex"))?;
        let version = self.answer(&Call::new(["version"], None)).await?;
        let operation = if self.spec.operation == Operation::Preview { Operation::Up } else { self.spec.operation };
        Ok(Basis { request, key, operation, pulumi: String::from_utf8_lossy(&version).trim().to_owned() })
    }

    /// Reports the plan, and returns its hash if it is to be applied. Fails if another one was
    /// approved.
    fn judge_plan(
        &self,
        basis: &Basis<'_>,
        preview: &Preview,
        state: &State,
        report: &mut Report,
    ) -> Result<Option<PlanHash>, Failure> {
        let plan = plan::planned(basis, preview, state, &self.pulumi.mask, (self.now)());
        self.show(&plan);
        let (hash, count) = (plan.hash.clone(), plan.changes.count);
        report.plan = Some(plan);
        if self.spec.expect_no_changes && count > 0 {
            let remedy = "nothing was changed; set expectNoChanges: false to allow it";
            return Err(Failure::unknown(format!("expectNoChanges: the plan would change {count} resource(s); {remedy}")));
        }
        match &basis.request.approved {
            None => Ok(None),
            Some(approved) if *approved == hash => Ok(Some(hash)),
            Some(approved) => Err(stale(approved, &hash)),
        }
    }

    async fn apply(
        &self,
        hash: &PlanHash,
        preview: &Preview,
        (file, request): (&Path, &PlanRequest),
        report: &mut Report,
    ) -> Result<Events, Failure> {
        let packs = self.policy_packs(request).await?;
        // From here on, Pulumi's messages may contain values.
        let _: Result<_, _> = self.violations.set(Rc::new(preview.violations()));
        self.pulumi.hides_violations.set(true);
        self.log.say(&format!("driftless: applying plan {}", hash.short()));
        let applied = self.operate(report, |spec, event_log| arguments::apply(spec, event_log, file, &packs)).await;
        applied.map_err(|failure| failure.of_plan(hash.short(), self.acted.get()))
    }

    /// The exported state. Fails if an earlier run left operations open: no preview shows them.
    async fn state(&self, report: &mut Report) -> Result<State, Failure> {
        let export = self.answer(&Call::new(["stack", "export", "--show-secrets"], Some(&self.spec.stack))).await?;
        // Pulumi has found the stack.
        self.engaged.set(true);
        let unreadable = |error: serde_json::Error| {
            // The text of the error could quote a secret.
            Failure::unknown(format!("the exported state is not a state of pulumi: {:?} error", error.classify()))
        };
        let pending = pending_in_state(&export).map_err(unreadable)?;
        let pending: Vec<String> = pending.iter().map(|operation| self.pulumi.mask.apply(operation)).collect();
        if pending.is_empty() || self.spec.operation == Operation::Refresh {
            return State::parse(&export).map_err(unreadable);
        }
        let message = format!(
            "an earlier run left {} operation(s) pending ({}), which no plan shows; nothing was changed; refresh the stack first",
            pending.len(),
            pending.join(", ")
        );
        report.pending_operations = pending;
        Err(Failure { reason: FailureReason::PendingOperations, message })
    }

    /// Runs a preview that writes its plan to `file`.
    async fn preview(&self, name: &str, file: &Path, request: &PlanRequest) -> Result<(Preview, Events), Failure> {
        let packs = self.policy_packs(request).await?;
        self.check_stop()?;
        let event_log = self.event_logs.with_extension(name);
        let call = arguments::plan(self.spec, &event_log, file, &packs);
        let mut events = Events::default();
        let mut beat = tokio::time::interval(EVENTS_EVERY);
        let answering = self.pulumi.answer(&call);
        tokio::pin!(answering);
        let (mut ended, digest) = loop {
            tokio::select! {
                answer = &mut answering => break answer.map_err(not_run)?,
                _ = beat.tick() => self.observe(&mut events, &event_log),
            }
        };
        self.observe(&mut events, &event_log);
        if !events.errors().is_empty() {
            ended.words = events.errors();
        }
        // Pulumi's own output is the digest, which is not shown.
        for told in &events.told {
            self.log.say(&format!("driftless: {told}"));
        }
        self.judge(&ended).map_err(|failure| failure.of_policies(&events, false).of_plan_flags())?;
        let read = || -> io::Result<Preview> {
            let mut preview = Preview::default();
            preview.advice.clone_from(&events.advice);
            preview.read_events(&fs::read(&event_log)?)?;
            if matches!(self.spec.operation, Operation::Up | Operation::Preview) {
                preview.read_states(&digest)?;
                preview.read_plan(&fs::read(file)?)?;
            }
            Ok(preview)
        };
        // The text of an error of JSON could quote a secret.
        let preview =
            read().map_err(|error| Failure::unknown(format!("the preview of pulumi cannot be read: {:?}", error.kind())))?;
        fs::remove_file(&event_log).map_err(Failure::unknown)?;
        Ok((preview, events))
    }

    /// Runs a call whose standard output is the answer and is not shown.
    async fn answer(&self, call: &Call) -> Result<Vec<u8>, Failure> {
        self.check_stop()?;
        let (ended, answer) = self.pulumi.answer(call).await.map_err(not_run)?;
        self.judge(&ended)?;
        Ok(answer)
    }

    fn unstable(&self, urns: &[String]) -> Failure {
        let named: Vec<String> = urns.iter().take(3).map(|urn| self.pulumi.mask.apply(urn)).collect();
        let message = format!(
            "two previews of the same program take different steps for {} resource(s) ({}); nothing was changed; make the program \
             deterministic",
            urns.len(),
            named.join(", ")
        );
        Failure { reason: FailureReason::PlanUnstable, message }
    }

    /// Prints the plan, of which Pulumi shows nothing.
    fn show(&self, plan: &PlannedChanges) {
        let counts: Vec<String> = plan.counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let counts = if counts.is_empty() { "no changes".into() } else { counts.join(", ") };
        self.log.say(&format!("driftless: plan {}: {counts}", plan.hash));
        for change in &plan.changes.first {
            let paths = if change.paths.is_empty() { String::new() } else { format!(" ({})", change.paths.join(", ")) };
            self.log.say(&format!("driftless:   {} {}{paths}", change.kind, change.urn));
        }
        let leaves = [("known only when applied", &plan.unknown), ("different in each preview", &plan.unstable)];
        for (what, leaf) in leaves.iter().flat_map(|(what, leaves)| leaves.first.iter().map(move |leaf| (what, leaf))) {
            self.log.say(&format!("driftless:   {what}: {} of {}", leaf.path, leaf.urn));
        }
    }
}

fn stale(approved: &PlanHash, found: &PlanHash) -> Failure {
    let message = format!(
        "plan {} was approved, but the plan is {} now; nothing was changed; review the new plan and approve it",
        approved.short(),
        found.short()
    );
    Failure { reason: FailureReason::PlanStale, message }
}
