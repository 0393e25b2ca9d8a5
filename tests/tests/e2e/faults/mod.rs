//! Faults of processes, machines and clocks, and their effects on resources, locks, claims, slots
//! and objects.

mod clock;
mod crashes;
mod disk;
mod image;
mod releases;
mod size;
mod watch;
