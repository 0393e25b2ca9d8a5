//! The Kubernetes objects that Driftless serves and reads.
//!
//! `Stack`, `Program`, `Workspace` and `Update` have every field of the Pulumi Kubernetes Operator
//! (PKO) 2.9, with the same name and type, so its objects can be used unchanged. Fields that PKO
//! does not have are in one object field, `driftless`. The definitions for the cluster are
//! generated from these types by the binary `crdgen`.
//!
//! **Reading is lenient**: unknown fields are dropped, and a status field that does not decode is
//! absent. The API server has validated an object against the schema at the time of the write,
//! which may have been another operator's.

mod condition;
mod convert;
pub mod crds;
pub mod facts;
pub mod finalizer;
mod flux;
mod guard;
mod json;
mod outputs;
mod own_source;
mod plan_policy;
mod program;
mod shared;
mod stack;
mod stack_plan;
mod template;
mod tree;
mod update;
mod workspace;

pub use convert::{CONFIG_MAPS_MOUNT, SECRETS_MOUNT, is_stack};
pub use driftless_core::metadata as names;
pub use flux::{Artifact, KINDS, Source};
pub use guard::{POLICY, guard};
pub use outputs::StackOutputs;
pub use own_source::OwnSource;
pub use plan_policy::{
    NamespaceRequirement, NamespaceSelector, PLAN_POLICIES, PlanPolicy, PlanPolicyAction, PlanPolicyPack, PlanPolicyRule,
    PlanPolicySource, PlanPolicySpec, SelectorOperator, governance,
};
pub use program::{
    ConfigurationType, CustomTimeouts, Program, ProgramBody, ProgramConfiguration, ProgramResource, ProgramRoot, ProgramStatus,
    ResourceGetter, ResourceOptions,
};
pub use shared::{ObjectReference, ProjectInfo, uid_of};
pub use stack::{
    BasicAuth, ConfigMapKey, CurrentUpdate, DriftedResource, DriftlessStack, DriftlessStackStatus, EnvSelector, FileSelector,
    FluxSource, GitAuth, GithubAppAuth, LastUpdate, LiteralSelector, PlatformFailures, Prerequisite, ProgramReference,
    Requirement, ResourceRef, SecretSelector, SshAuth, Stack, StackDrift, StackExpiry, StackRetries, StackSpec, StackStatus,
    WorkspaceReclaimPolicy,
};
pub use stack_plan::{EarlyApproval, PlanDigests, PlannedResource, PlannedValue, StackPlan};
pub use tree::Tree;
pub use update::{
    DriftlessUpdate, DriftlessUpdateStatus, LogLink, StackReference, Update, UpdateProgress, UpdateSpec, UpdateStatus, UpdateStep,
};
pub use workspace::{
    ConfigItem, ConfigValueFrom, DriftlessWorkspace, DriftlessWorkspaceStatus, FluxArtifact, LocalSource, PodTemplate,
    ServiceTemplate, Workspace, WorkspaceGit, WorkspaceGitAuth, WorkspaceGithubApp, WorkspaceSpec, WorkspaceStack,
    WorkspaceStatus,
};
