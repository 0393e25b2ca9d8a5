//! What a user sees, through the real processes. All tests share one world; each has a namespace of its own. A test that turns
//! something off for everybody has the world to itself.

mod alerts;
mod attacks;
mod bootstrap;
mod canary;
mod capacity;
mod clusters;
mod compat;
mod dead_cluster;
mod doctor;
mod drift;
mod events;
mod failures;
mod fairness;
mod git;
mod guides;
mod hostile;
mod identity;
mod interruption;
mod languages;
mod logs;
mod main_path;
mod metrics;
mod migration;
mod notifications;
mod platform;
mod programs;
mod prove;
mod readiness;
mod sources;
mod spot;
mod stopped;
mod tickets;
mod updates;
mod workspaces;
mod world;
