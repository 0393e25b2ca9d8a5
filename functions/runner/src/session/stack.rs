//! The selection and configuration of a run's stack.

use driftless_contract::{Config, FailureReason, Operation, Phase};

use super::Session;
use crate::{
    arguments::{self, Call},
    failure::Failure,
    passphrase,
    pulumi::Pulumi,
    settings::SettingsFile,
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

    /// Returns why a call failed that needs a backend: `login` names the backend and its error, and is not called as long as the
    /// other calls succeed.
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

/// The configuration of a run: what its settings file has, and what Pulumi has to set.
pub(super) struct Configuration<'a> {
    file: Option<SettingsFile>,
    pub(super) left: Vec<&'a Config>,
}

impl<'a> Configuration<'a> {
    /// Writes what does not need Pulumi.
    pub(super) fn new(session: &Session<'a>) -> Result<Self, Failure> {
        let Session { spec, pulumi, .. } = session;
        let mut file = SettingsFile::new(&pulumi.dir, &spec.stack, &pulumi.environment);
        let left = file.as_mut().map_or_else(|| Ok(spec.config.iter().collect()), |file| file.write(&spec.config));
        Ok(Self { file, left: left.map_err(Failure::unknown)? })
    }

    /// Encrypts the rest if the runner can. Returns whether nothing is left for Pulumi.
    pub(super) fn encrypt(&mut self, pulumi: &Pulumi<'_>) -> Result<bool, Failure> {
        let (Some(file), Some(passphrase)) = (&mut self.file, passphrase::of(&pulumi.environment, &pulumi.dir)) else {
            return Ok(false);
        };
        file.write_secrets(&self.left, &passphrase).map_err(Failure::unknown)
    }
}
