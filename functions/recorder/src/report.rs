//! Reads a task's report. The tenant's program may have written it, so it is bounded.

use driftless_aws::{Objects, Queues, Tasks};
use driftless_contract::{Document as _, Outcome, Owner, Phase, RunResult, VERSION, Verdict, keys::TaskFolder, parsed};
use driftless_kubernetes::Cluster;

use crate::{
    Error, Recorder, bound,
    document::{MAX_REPORT, sha256},
    facts::Run,
    outputs,
};

impl<C: Cluster, O: Objects, Q: Queues, T: Tasks> Recorder<'_, C, O, Q, T> {
    /// The runner's report without the secret values of outputs, and the report as written.
    pub(crate) async fn reported(
        &self,
        task: &TaskFolder,
        run: &Run,
        owner: &Owner,
    ) -> Result<Option<(Outcome, Vec<u8>)>, Error> {
        let Some(document) = self.read_report(&task.result()).await? else { return Ok(None) };
        // The tenant's program may have written it: even an invalid document counts as a report.
        let result = if parsed(&document) > bound::MAX_PARSED {
            Err("result of the task has too many values; reduce the outputs of the program".into())
        } else {
            RunResult::parse(&document).map_err(|error| {
                if document.is_empty() {
                    "result of the task is empty or unreadable".into()
                } else if document.len() as u64 == MAX_REPORT {
                    format!("result of the task exceeds {} MiB; reduce the outputs of the program", MAX_REPORT >> 20)
                } else {
                    format!("result of the task is invalid: {error}")
                }
            })
        };
        let result = result.unwrap_or_else(|message: String| RunResult::new(bound::unknown(&message), owner.at, self.now));
        let request = run.launch.as_ref().and_then(|launch| launch.request.as_ref());
        let result =
            bound::of_mode(request.and_then(|request| request.plan.as_ref()), bound::bounded(result, owner.at, self.now));
        let operated = !matches!(result.verdict, Verdict::Failed { phase, .. } if phase != Phase::Run);
        let (id, preview) = (run.id(), run.launch.as_ref().is_some_and(|launch| launch.preview));
        let outcome = Outcome {
            version: VERSION,
            outputs: result.outputs.as_ref().map(|all| outputs::shown(all, &result.left_out, &outputs::name(&id.update.name))),
            run: id,
            verdict: result.verdict,
            result_sha256: Some(sha256(&document)),
            project: result.project,
            permalink: result.permalink,
            changes: result.changes,
            pending_operations: result.pending_operations,
            failures: result.failures,
            steps: result.steps,
            drift: result.drift.filter(|_| preview),
            would_change: result.would_change,
            plan: result.plan,
            preview,
            platform_failure: false,
            inputs: result.inputs,
            installed: result.installed,
            pull_millis: result.pull_millis,
            operated: Some(operated),
            started_at: Some(result.started_at),
            ended_at: result.ended_at,
            recorded_at: Some(self.now),
        };
        Ok(Some((outcome, document)))
    }
}
