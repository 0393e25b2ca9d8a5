//! The dependencies of a run: restored, installed, and stored for later runs.

use driftless_contract::{Installed, Layer, Operation};
use tokio::time::Instant;

use super::{Report, Session, compiled};
use crate::{arguments::Call, cache::Cache, failure::Failure, install, places::Places, pulumi::Pulumi};

impl Session<'_> {
    /// Puts the dependencies of the program into place: restores them from the cache, or installs
    /// them.
    pub(super) async fn install(&self, report: &mut Report) -> Result<(), Failure> {
        let cache = self.cache.get_or_init(|| {
            let places = Places {
                source: self.source.clone(),
                project: self.pulumi.dir.clone(),
                compiled: compiled(&self.scratch),
                environment: self.pulumi.environment.clone(),
            };
            Cache::new(self.folder, self.spec.cache.as_ref(), places, self.image.clone(), &self.scratch)
        });
        let restore = |layer| self.unless_stopped(async move { Ok(cache.restore(layer).await) });
        restore(Layer::Plugins).await?;
        if self.needs_install().await {
            let has_packages = restore(Layer::Dependencies).await?;
            if has_packages {
                restore(Layer::Build).await?;
            }
            if !has_packages || !cache.is_complete() {
                // A restored layer may be why the installation fails.
                report.installed = self.report(cache);
                let (files, since) = (cache.files(), Instant::now());
                self.call(&Call::new(["install"], None)).await?;
                cache.installed(since.elapsed());
                if let Some(files) = files {
                    let pack = async {
                        cache.pack_packages(&files).await;
                        Ok(())
                    };
                    self.unless_stopped(pack).await?;
                }
            }
        }
        report.installed = self.report(cache);
        if let Some(installed) = &report.installed {
            if self.spec.cache.is_some() {
                self.log.say(&format!("driftless: dependencies: {}", installed.summary));
            }
            self.gauge.dependencies.replace(Some(installed.summary.clone()));
        }
        Ok(())
    }

    fn report(&self, cache: &Cache<'_>) -> Option<Installed> {
        let report = cache.report()?;
        Some(Installed { summary: self.pulumi.mask.apply(&report.summary), ..report })
    }

    /// Stores for later runs what this one installed. A stop ends that: the operation is over, and
    /// its result comes first.
    pub(super) async fn store(&self, report: &mut Report) {
        let Some(cache) = self.cache.get() else { return };
        self.pulumi.heard.set(Instant::now());
        let stored = self.unless_stopped(async { Ok(cache.store().await) }).await;
        for problem in stored.unwrap_or_default() {
            self.log.say(&format!("driftless: {}", self.pulumi.mask.apply(&problem)));
        }
        report.installed = self.report(cache);
    }

    /// Returns whether `pulumi install` may do something that the operation needs.
    async fn needs_install(&self) -> bool {
        let Pulumi { dir, environment, .. } = &self.pulumi;
        if install::has_all(dir, environment) {
            return false;
        }
        let runs_program = self.spec.run_program || matches!(self.spec.operation, Operation::Up | Operation::Preview);
        if runs_program || self.spec.resources.is_none() || !install::may_leave_out(dir, environment) {
            return true;
        }
        // The state is sufficient, except for resources that the program itself provides.
        let export = Call::new(["stack", "export"], Some(&self.spec.stack));
        self.report_start();
        let state = self.pulumi.ask(&export).await;
        let is_needed = !matches!(state, Ok((true, state, _)) if !install::has_dynamic(&state));
        is_needed || !install::leave_out(dir)
    }
}
