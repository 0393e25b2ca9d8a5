//! The selection of a run's stack.

use driftless_contract::{FailureReason, Operation, Phase};

use super::Session;
use crate::{
    arguments::{self, Call},
    failure::Failure,
};

impl Session<'_> {
    /// Selects the stack; `false` if it does not exist and a destroy is done.
    pub(super) async fn select(&self) -> Result<bool, Failure> {
        let Err(failure) = self.call(&arguments::select(self.spec)).await else { return Ok(true) };
        if !failure.is_of_no_stack() {
            return Err(self.of_login(failure).await);
        }
        if self.spec.operation != Operation::Destroy {
            return Err(failure);
        }
        if let Some(why) = arguments::may_be_missing(self.spec) {
            self.log.say(&format!("driftless: stack not found in the backend: {why}; nothing is destroyed"));
            return Ok(false);
        }
        Err(failure.of_destroy(&self.spec.stack))
    }

    /// Returns why a call failed that needs a backend: `login` names the backend and its error, and
    /// is not called as long as the other calls succeed.
    pub(super) async fn of_login(&self, failure: Failure) -> Failure {
        if failure.reason == FailureReason::UpdateConflict || self.check_stop().is_err() {
            return failure;
        }
        // To the backend of PULUMI_BACKEND_URL, else the project's, else Pulumi Cloud.
        let Err(login) = self.call(&Call::new(["login"], None)).await else { return failure };
        self.gauge.phase.set(Phase::Init);
        login
    }
}
