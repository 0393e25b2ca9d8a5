use driftless_contract::{Config, RunSpec};

use crate::{failure::Failure, passphrase, pulumi::Pulumi, settings::SettingsFile};

/// The configuration of a run: what its settings file has, and what Pulumi has to set.
pub(super) struct Configuration<'a> {
    file: Option<SettingsFile>,
    pub(super) left: Vec<&'a Config>,
}

impl<'a> Configuration<'a> {
    /// Writes what does not need Pulumi.
    pub(super) fn new(spec: &'a RunSpec, pulumi: &Pulumi<'_>) -> Result<Self, Failure> {
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
