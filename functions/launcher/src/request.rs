//! The request of an Update, fixed when its launch is recorded.

use std::collections::BTreeMap;

use driftless_api::{Stack, Update, UpdateSpec, names, uid_of};
use driftless_contract::{Launch, Operation, PlanMode, RunLimits, RunRequest, StackId};
use kube::ResourceExt as _;

use crate::{Settings, snapshot};

/// Everything that determines a run. It comes from the Update until the launch record is written,
/// and only from the record afterwards.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) spec: UpdateSpec,
    pub(crate) operation: Operation,
    /// The Stack of the run, as read from the cluster. `None` for an Update without a Stack.
    pub(crate) stack: Option<StackId>,
    pub(crate) limits: RunLimits,
    /// See [`RunRequest::not_secret`].
    pub(crate) not_secret: Vec<String>,
    /// See [`RunRequest::plan`].
    pub(crate) plan: Option<PlanMode>,
    /// See [`Launch::spot`].
    pub(crate) spot: bool,
    /// Decides the entries that the launch records. The default in a request that comes from the
    /// record, which has them.
    pub(crate) cache: CacheMode,
}

/// How a run uses the cache of dependencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CacheMode {
    /// It restores what is there, and stores the rest.
    #[default]
    On,
    /// It neither restores nor stores anything.
    Off,
    /// It installs everything and replaces what is there.
    Refresh,
}

impl Request {
    /// The request of an Update that is not launched yet, or the message that names its invalid
    /// field. `stack` is the Stack that names it, and `named` the one whose plan that previews.
    pub(crate) fn of(settings: &Settings, update: &Update, stack: Option<&Stack>, named: Option<&Stack>) -> Result<Self, String> {
        let spec = update.spec.clone();
        let operation = operation(&spec)?;
        let missing = |field: &Option<String>| field.as_deref().unwrap_or_default().is_empty();
        if missing(&spec.stack_name) {
            return Err("spec.stackName is missing; write the name of the Pulumi stack".into());
        }
        if spec.driftless.is_none() && missing(&spec.workspace_name) {
            return Err("spec.workspaceName is missing; name a Workspace of the same namespace".into());
        }
        if let Some(ttl) = spec.ttl_after_completed.as_ref().filter(|ttl| driftless_core::duration(ttl).is_none()) {
            return Err(format!("spec.ttlAfterCompleted is {ttl:?}; write a duration such as 24h"));
        }
        if let (None, Some(ours)) = (stack, &spec.driftless) {
            snapshot::check_own(settings, ours)?;
        }
        let id = |stack: &Stack| StackId { namespace: stack.namespace().unwrap_or_default(), uid: uid_of(stack) };
        // Not from a Stack's Update: a user who may edit the Update may lack the right to edit the
        // Stack.
        let annotations = stack.map_or_else(|| update.annotations(), |stack| stack.annotations());
        let not_secret = annotations.get(names::NOT_SECRET).map_or("", String::as_str);
        let mut request = Self {
            plan: plan(&spec, stack, named),
            spec,
            operation,
            stack: stack.map(id),
            limits: limits(settings, update)?,
            not_secret: not_secret.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned).collect(),
            spot: false,
            cache: cache(annotations)?,
        };
        let changes_nothing = request.spec.changes_nothing();
        request.spot = spot(settings, update, changes_nothing)?;
        Ok(request)
    }

    /// Reads the request of a launch record. `None` if another release wrote it in another form.
    pub(crate) fn recorded(launch: &Launch) -> Option<Self> {
        let RunRequest { spec, stack, limits, not_secret, plan } = launch.request.clone()?;
        let spec: UpdateSpec = serde_json::from_value(spec).ok()?;
        let operation = operation(&spec).ok()?;
        Some(Self { spec, operation, stack, limits, not_secret, plan, spot: launch.spot, cache: CacheMode::default() })
    }

    /// The part of the request that the launch record keeps.
    pub(crate) fn to_record(&self) -> RunRequest {
        let Self { spec, stack, limits, not_secret, plan, .. } = self;
        // A spec that the API server returned is always JSON.
        let spec = serde_json::to_value(spec).unwrap_or_default();
        RunRequest { spec, stack: stack.clone(), limits: *limits, not_secret: not_secret.clone(), plan: plan.clone() }
    }

    /// Whether the run only previews its operation.
    pub(crate) fn previews_only(&self) -> bool {
        self.spec.driftless.as_ref().and_then(|ours| ours.preview_only) == Some(true)
    }

    /// Whether the run is a drift check.
    pub(crate) fn is_check(&self) -> bool {
        self.previews_only() && self.plan.is_none()
    }
}

fn operation(spec: &UpdateSpec) -> Result<Operation, String> {
    let word = spec.operation.as_deref().unwrap_or_default();
    Operation::parse(word).ok_or_else(|| format!("spec.type is {word:?}; use up, preview, refresh or destroy"))
}

/// The limits of the run: those of the installation, shortened by the Update's annotation.
fn limits(settings: &Settings, update: &Update) -> Result<RunLimits, String> {
    let RunLimits { silence_seconds, max_seconds } = settings.run_limits;
    let Some(word) = update.annotations().get(names::MAX_DURATION) else { return Ok(settings.run_limits) };
    let seconds = driftless_core::duration(word).and_then(|duration| u32::try_from(duration.as_secs()).ok());
    let Some(seconds) = seconds.filter(|seconds| *seconds > 0) else {
        let field = names::MAX_DURATION;
        return Err(format!("the annotation {field} is {word:?}; write a duration of a second or more, such as 2h30m"));
    };
    let max_seconds = Some(max_seconds.map_or(seconds, |max| max.min(seconds)));
    Ok(RunLimits { silence_seconds, max_seconds })
}

/// How the run uses the cache, by the annotation of its Stack, or of an Update without one.
fn cache(annotations: &BTreeMap<String, String>) -> Result<CacheMode, String> {
    let (field, words) = (names::CACHE, [names::OFF, names::REFRESH]);
    match annotations.get(field).map(String::as_str) {
        None => Ok(CacheMode::On),
        Some(names::OFF) => Ok(CacheMode::Off),
        Some(names::REFRESH) => Ok(CacheMode::Refresh),
        Some(other) => {
            let [off, refresh] = words;
            Err(format!("the annotation {field} is {other:?}; write {off:?} or {refresh:?}, or remove it"))
        }
    }
}

/// Whether the run requests Fargate Spot: its annotation decides, else only runs that change
/// nothing do.
fn spot(settings: &Settings, update: &Update, changes_nothing: bool) -> Result<bool, String> {
    let (field, words) = (names::CAPACITY, [names::SPOT, names::ON_DEMAND]);
    let wanted = match update.annotations().get(field).map(String::as_str) {
        None => changes_nothing,
        Some(names::SPOT) => true,
        Some(names::ON_DEMAND) => false,
        Some(other) => {
            let [spot, on_demand] = words;
            return Err(format!("the annotation {field} is {other:?}; write {spot:?} or {on_demand:?}, or remove it"));
        }
    };
    Ok(wanted && settings.spot)
}

/// What the run of a Stack may do: make a plan, or apply the approved one. The launcher starts the
/// second only if the Stack permits it.
fn plan(spec: &UpdateSpec, stack: Option<&Stack>, named: Option<&Stack>) -> Option<PlanMode> {
    let stack = stack?;
    if spec.is_proposal() {
        // A destroy or an adoption is never that of a pull request.
        let is_preview = operation(spec) == Ok(Operation::Preview);
        return Some(PlanMode::Propose { of: named.filter(|_| is_preview).map(uid_of) });
    }
    let plan = stack.status.as_ref().and_then(|status| status.driftless.as_ref()?.plan.as_ref());
    let approved_by = plan.and_then(|plan| plan.approved_by.clone());
    spec.plan().map(|hash| PlanMode::Apply { hash, approved_by })
}
