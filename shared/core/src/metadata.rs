//! Names in the metadata of objects: finalizer, annotations and labels. PKO's names are kept
//! exactly, because users, their tools and objects of an earlier PKO use them.

/// The finalizer on every Stack and on every Update that a Stack owns.
pub const FINALIZER: &str = "finalizer.stack.pulumi.com";

/// Annotation of a Stack: a change of the value requests a run.
pub const RECONCILIATION_REQUEST: &str = "pulumi.com/reconciliation-request";

/// Annotation of a Stack: the directories and files of its source that it uses beside the project's
/// own directory, separated by commas. A revision that changes none of them starts no run, and a
/// run gets only these. Without it, the whole source is used.
pub const PATHS: &str = "driftless.dev/paths";

/// Annotation of a Stack: with the value [`IGNORE`], a change of a Secret or `ConfigMap` that it
/// refers to starts no run.
pub const INPUTS: &str = "driftless.dev/inputs";

/// The value of [`INPUTS`].
pub const IGNORE: &str = "ignore";

/// Annotation of a Stack with `destroyOnFinalize`: with the value [`NEVER`], no sealed copy of its
/// runs' inputs is kept. In a terminating namespace the Stack then cannot be destroyed.
pub const SEAL: &str = "driftless.dev/seal";

/// The value of [`SEAL`].
pub const NEVER: &str = "never";

/// Annotation of a Stack: with the value `true`, no run of it starts. A live run continues.
pub const SUSPEND: &str = "driftless.dev/suspend";

/// Annotation of a Stack: how long after its creation it is deleted, such as `72h`, if it has
/// `destroyOnFinalize`.
pub const TTL: &str = "driftless.dev/ttl";

/// Annotation of a Stack: the number of the pull request or merge request that it previews, as on
/// Flux's own objects. Also annotation of an Event that is shown there.
pub const CHANGE_REQUEST: &str = "event.toolkit.fluxcd.io/change_request";

/// Annotation of a Stack with `spec.preview`: the Stack of its namespace that will apply what it
/// previews, after the merge of its pull request. Its runs make the plan that this Stack will have.
pub const PULL_REQUEST_OF: &str = "driftless.dev/pull-request-of";

/// Annotation of a Stack: with the value [`PREVIEW`], other Stacks may be a [`PULL_REQUEST_OF`] it.
pub const PULL_REQUESTS: &str = "driftless.dev/pull-requests";

/// The value of [`PULL_REQUESTS`].
pub const PREVIEW: &str = "preview";

/// Annotation of a Stack: when its maintenance window opens, as five cron fields such as `0 22 * *
/// 1-5`. Runs that change resources start within the window only.
pub const WINDOW_SCHEDULE: &str = "driftless.dev/window-schedule";

/// Annotation of a Stack with a [`WINDOW_SCHEDULE`]: how long its window is open, such as `4h`.
pub const WINDOW_DURATION: &str = "driftless.dev/window-duration";

/// Annotation of a Stack: the IANA time zone of its [`WINDOW_SCHEDULE`]; UTC without it.
pub const WINDOW_TIME_ZONE: &str = "driftless.dev/window-time-zone";

/// Annotation of a Stack: the schedule of drift checks, as an interval such as `6h` or five cron
/// fields such as `0 3 * * *`.
pub const DRIFT_SCHEDULE: &str = "driftless.dev/drift-schedule";

/// Annotation of a Stack: the IANA time zone of a [`DRIFT_SCHEDULE`] of cron fields; UTC without
/// it.
pub const DRIFT_TIME_ZONE: &str = "driftless.dev/drift-time-zone";

/// Annotation of a Stack: with the value `true`, drift checks are paused and the known state of
/// drift stays.
pub const DRIFT_SUSPEND: &str = "driftless.dev/drift-suspend";

/// Annotation of a Stack: properties that never count as drift, as `PATH` or `TYPE#PATH`, separated
/// by commas.
pub const DRIFT_IGNORE: &str = "driftless.dev/drift-ignore";

/// Annotation of a Stack: the drift check whose drift is to be fixed, if it is still the last one;
/// or [`ALWAYS`].
pub const REMEDIATE: &str = "driftless.dev/remediate";

/// Annotation of a Stack: the drift check whose drift the state is to take over, if it is still the
/// last one. It precedes [`REMEDIATE`].
pub const ADOPT: &str = "driftless.dev/adopt";

/// The value of [`REMEDIATE`] that fixes all drift that is found.
pub const ALWAYS: &str = "always";

/// Annotation of a Stack or a Namespace, for all Stacks in it: changes need an approval.
/// `required`, or `unless` and the kinds of change that need one, such as `unless replace,delete`.
pub const APPROVAL: &str = "driftless.dev/approval";

/// Annotation of a Stack: the hash of the plan that its user approves. The reconciler empties it
/// when a run has used it.
pub const APPROVE: &str = "driftless.dev/approve";

/// Annotation of a Stack: the user who set [`APPROVE`]. The admission policy guarantees it.
pub const APPROVED_BY: &str = "driftless.dev/approved-by";

/// Annotation of a Stack: the hash of a plan that must not be applied.
pub const REJECT: &str = "driftless.dev/reject";

/// Annotation of a Stack with [`APPROVAL`]: the time after which a plan expires, such as `24h`;
/// `72h` without it.
pub const PLAN_TTL: &str = "driftless.dev/plan-ttl";

/// Label of a proposal's Update, with an empty value, and annotation of the Update that applies a
/// plan, with its hash.
pub const PLAN: &str = "driftless.dev/plan";

/// Label of a drift check's Update, with the value `true`.
pub const DRIFT_CHECK: &str = "driftless.dev/drift-check";

/// Annotation of an Update: when a reader asked for a new link to the log of its ended run, such as
/// `2026-11-26T12:00:00Z`.
pub const LOG_REQUESTED_AT: &str = "driftless.dev/log-requested-at";

/// Annotation of an Update: a run that takes longer is interrupted and fails. A duration such as
/// `2h`. A Stack sets it in its `updateTemplate`.
pub const MAX_DURATION: &str = "driftless.dev/max-duration";

/// Annotation of a Stack or an Update: the capacity of its runs, [`SPOT`] or [`ON_DEMAND`]. Without
/// it, only runs that change nothing use Spot.
pub const CAPACITY: &str = "driftless.dev/capacity";

/// The value of [`CAPACITY`] for Fargate Spot, which costs less and may be reclaimed during a run.
pub const SPOT: &str = "spot";

/// The value of [`CAPACITY`] for Fargate without Spot.
pub const ON_DEMAND: &str = "on-demand";

/// Annotation of a Stack, or of an Update without one: how its runs use the cache of dependencies,
/// [`OFF`] or [`REFRESH`]. Without it, they restore what is there and store the rest.
pub const CACHE: &str = "driftless.dev/cache";

/// The value of [`CACHE`] for runs that neither restore nor store anything.
pub const OFF: &str = "off";

/// The value of [`CACHE`] for runs that install everything and replace what is stored.
pub const REFRESH: &str = "refresh";

/// Annotation of a Stack, or of an Update without one: the outputs that are shown although they
/// contain a value from a Secret, separated by commas. An output that Pulumi itself marks secret is
/// not shown.
pub const NOT_SECRET: &str = "driftless.dev/not-secret";

/// Annotation of a claim's Lease: the Update that holds it, as `namespace/name`.
pub const UPDATE: &str = "driftless.dev/update";

/// Annotation of a claim's Lease, with the value `true`: another run waits for the claim.
pub const WAITED: &str = "driftless.dev/waited";

/// Annotation of an outputs Secret: the names of the outputs that are secret, as a sorted JSON
/// array.
pub const SECRET_OUTPUTS: &str = "pulumi.com/secrets";

/// Label of a Stack's Workspace and Updates, with the value [`COMPONENT_STACK`].
pub const COMPONENT: &str = "pulumi.com/component";

/// The value of [`COMPONENT`].
pub const COMPONENT_STACK: &str = "stack";

/// Label of a Stack's Workspace and Updates: the Stack's name.
pub const STACK_NAME: &str = "pulumi.com/stack-name";

/// Label of an Update that is not in its Stack's namespace: that namespace.
pub const STACK_NAMESPACE: &str = "driftless.dev/stack-namespace";

/// Label of an outputs Secret and of the `ConfigMap` with a log, with the value
/// [`AUTO_COMPONENT_UPDATE`].
pub const AUTO_COMPONENT: &str = "auto.pulumi.com/component";

/// The value of [`AUTO_COMPONENT`].
pub const AUTO_COMPONENT_UPDATE: &str = "update";

/// Label of an outputs Secret: the Update's name.
pub const UPDATE_NAME: &str = "auto.pulumi.com/update-name";

/// Annotation of a Secret or `ConfigMap` with outputs of a Stack: when the run was recorded that
/// changed it last.
pub const RECORDED_AT: &str = "driftless.dev/recorded-at";

/// Label of a Secret or `ConfigMap` with outputs of a Stack, with the value [`MANAGER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The value of [`MANAGED_BY`].
pub const MANAGER: &str = "driftless";

/// The suffix of an Update's name in the name of its outputs Secret.
pub const OUTPUTS_SUFFIX: &str = "-stack-outputs";

/// The suffix of an Update's name in the name of the `ConfigMap` with its log.
pub const LOG_SUFFIX: &str = "-log";
