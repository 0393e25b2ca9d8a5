//! Fills the folder of a task.

use driftless_api::{Update, uid_of};
use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{
    Config, ConfigValue, Identity, Launch, LaunchHint, ObjectKey, Operation, RunSpec, SealedInputs, TaskRun, Uid, VERSION,
    keys::{self, TaskFolder},
    to_json,
};
use driftless_core::run::WaitReason;
use driftless_kubernetes::{Cluster, Error as KubernetesError, EventMarks, EventReason, EventType};

use crate::{
    Error, Launcher, Stop,
    facts::Run,
    identity,
    request::Request,
    spec::{self, Seal},
};

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Launcher<'_, C, O, Q, T> {
    /// Writes what the owner needs into its folder. The spec is last, so a task with a spec has
    /// everything. Returns `false` if the run has ended.
    pub(crate) async fn fill_task_folder(
        &self,
        update: &Update,
        prepared: &spec::Prepared,
        launch: &Launch,
        task: &str,
    ) -> Result<bool, Stop> {
        let identity = match &prepared.account {
            Ok(account) => match identity::tokens(self.cluster, account, self.settings.token_seconds).await {
                Err(KubernetesError::NamespaceTerminating { message, .. }) if prepared.spec.operation == Operation::Destroy => {
                    Err(message)
                }
                Err(KubernetesError::Permanent { message, .. }) if prepared.is_last => Err(message),
                tokens => Ok(tokens.map_err(identity::refused)?),
            },
            Err(words) => Err(words.clone()),
        };
        let folder = keys::task(&self.settings.task_role_id, task);
        self.objects.write(&folder.run(), &TaskRun { version: VERSION, run: prepared.run.clone() }).await?;
        let packs = prepared.packs.iter().enumerate().map(|(number, pack)| (folder.policy_pack(number), pack));
        for (place, tree) in prepared.tree.iter().map(|tree| (folder.tree(), tree)).chain(packs) {
            self.objects.put(&place.manifest(), tree.manifest.clone()).await?;
            self.objects.copy(&tree.folder.pack(), &place.pack()).await?;
        }
        let cache = self.give_cache(prepared, launch, &folder).await;
        match &prepared.seal {
            Seal::Write(stack) => {
                let RunSpec { env, config, files, .. } = &prepared.spec;
                let (env, config, files) = (env.clone(), config.clone(), files.clone());
                let sealed = SealedInputs { version: VERSION, stack: stack.clone(), env, config, files };
                self.objects
                    .put_sealed(&keys::sealed(&prepared.run.update.cluster, stack), to_json(&sealed).into_bytes())
                    .await?;
            }
            Seal::Delete(stack) => self.objects.delete(&keys::sealed(&prepared.run.update.cluster, stack)).await?,
            Seal::Leave => {}
        }
        if let Ok(identity) = &identity {
            self.objects.write(&folder.identity(), identity).await?;
        }
        let mut spec = RunSpec { identity: identity.is_ok(), cache, ..prepared.spec.clone() };
        let left_out = put_tokens(&mut spec.config, identity.as_ref().ok());
        self.objects.write(&folder.spec(), &spec).await?;
        if let Err(words) = identity {
            let note = format!(
                "destroy runs without the tokens of its ServiceAccount: {words}; it cannot delete what only these tokens can reach"
            );
            self.cluster.event(update, EventType::Warning, EventReason::NoIdentity, &note, EventMarks::default(), self.now).await;
        }
        if !left_out.is_empty() {
            let note =
                format!("configuration is left out because its token is missing: {}; mount the token there", left_out.join(", "));
            self.cluster
                .event(update, EventType::Warning, EventReason::ConfigLeftOut, &note, EventMarks::default(), self.now)
                .await;
        }
        Ok(!self.clear_if_ended(&prepared.run.update, &prepared.run.uid, &folder).await?)
    }

    /// Deletes the secrets in a task's folder if the outcome was recorded in the meantime, because
    /// the recorder had cleared the folder before they were written. Returns whether it was.
    async fn clear_if_ended(&self, update: &ObjectKey, uid: &Uid, folder: &TaskFolder) -> Result<bool, Error> {
        let over = self.objects.exists(&keys::run(&update.cluster, uid).outcome()).await?;
        if over {
            self.objects.delete_all(&[&folder.spec(), &folder.identity()]).await?;
        }
        Ok(over)
    }

    /// Supplies the task that owns a run. The request is that of the launch record, because the
    /// Update may have changed.
    pub(crate) async fn supply(&self, hint: &LaunchHint, run: &Run, needs: Supply) -> Result<(), Error> {
        let (Some(launch), Some(task)) = (&run.launch, run.task.as_deref()) else { return Ok(()) };
        let Some(request) = Request::recorded(launch) else { return Ok(()) };
        let update = &run.update;
        let done = async {
            if needs.renew {
                return self.renew_tokens(hint, update, &request, task).await;
            }
            if !needs.fill {
                return Ok(());
            }
            let prepared = self.prepare(hint, update, &request).await?;
            if prepared.run != launch.run {
                return Err(Stop::wait(
                    WaitReason::InputsChanged,
                    "inputs name another backend or project than the launch record",
                ));
            }
            self.fill_task_folder(update, &prepared, launch, task).await.map(drop)
        };
        match done.await {
            Ok(()) => self.show_running(hint, update, task).await,
            Err(Stop::Fail(error)) => Err(error),
            // A task without a spec ends by itself, and the recorder records that.
            Err(Stop::Wait(reason, message)) => {
                tracing::warn!(update = %hint.update, %reason, message, "cannot fill the folder of the task");
                Ok(())
            }
        }
    }

    /// Renews the tokens of a task.
    async fn renew_tokens(&self, hint: &LaunchHint, update: &Update, request: &Request, task: &str) -> Result<(), Stop> {
        let folder = keys::task(&self.settings.task_role_id, task);
        let snapshot = self.snapshot(hint, update, request).await?;
        let mounted = snapshot.workspace.task(&snapshot.at).mounted_files().map_err(Stop::invalid)?;
        let account = identity::account(self.cluster, &snapshot.namespace, &snapshot.workspace, &mounted).await?;
        let tokens = identity::tokens(self.cluster, &account, self.settings.token_seconds).await.map_err(identity::refused)?;
        self.objects.write(&folder.identity(), &tokens).await?;
        self.clear_if_ended(&hint.update, &uid_of(update), &folder).await?;
        Ok(())
    }
}

/// Replaces the paths of tokens by the tokens. Leaves out configuration whose token the run does
/// not have, as in a destroy with the sealed inputs of a run that mounted it, and returns the keys
/// with the paths.
fn put_tokens(config: &mut Vec<Config>, identity: Option<&Identity>) -> Vec<String> {
    let mut left_out = Vec::new();
    config.retain_mut(|config| {
        let ConfigValue::Token(path) = &config.value else { return true };
        let found = identity.and_then(|identity| identity.projected.iter().find(|projected| projected.path == *path));
        match found {
            Some(found) => config.value = ConfigValue::String(found.token.clone()),
            None => left_out.push(format!("key {:?} at {path:?}", config.key)),
        }
        found.is_some()
    });
    left_out
}

/// What the task that owns a run needs.
#[derive(Clone, Copy)]
pub(crate) struct Supply {
    pub(crate) fill: bool,
    pub(crate) renew: bool,
}
