//! The memory of a task, as a limit that the kernel enforces.

use std::{fs, path::PathBuf};

/// Returns whether this machine can enforce the memory of tasks.
#[must_use]
pub fn may_limit_memory() -> bool {
    Memory::new(&format!("try-{}", std::process::id()), 1).is_some()
}

/// A memory cgroup, removed when it is dropped.
pub(super) struct Memory(PathBuf);

impl Memory {
    /// A cgroup for a task with this much memory; `None` if this process may create none, so that tasks have no limit.
    pub(super) fn new(task: &str, mib: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        // Version 1 allows one below that of this process. In version 2 a cgroup with processes can have children only if it is
        // the root, in which all may be created.
        let (parent, limit) = match own.lines().find_map(path_of_v1) {
            Some(path) => (format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"),
            None => ("/sys/fs/cgroup".into(), "memory.max"),
        };
        let folder = PathBuf::from(parent).join(format!("driftless-{task}"));
        fs::create_dir(&folder).ok()?;
        let memory = Self(folder);
        fs::write(memory.0.join(limit), (mib << 20).to_string()).ok()?;
        Some(memory)
    }

    /// The file in which a process writes its id to join the cgroup.
    pub(super) fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// Returns whether the kernel has killed a process for lack of memory.
    pub(super) fn has_killed(&self) -> bool {
        let told = ["memory.oom_control", "memory.events"].map(|file| fs::read_to_string(self.0.join(file)).unwrap_or_default());
        let kills = told.iter().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix("oom_kill "));
        kills.is_some_and(|kills| kills != "0")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // If a process outlives its task, only an empty directory is left.
        let _: std::io::Result<()> = fs::remove_dir(&self.0);
    }
}

/// The path of the memory controller of version 1 in a line of `/proc/self/cgroup`, such as `4:memory:/user.slice`.
fn path_of_v1(line: &str) -> Option<&str> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    controllers.split(',').any(|controller| controller == "memory").then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_of_memory_is_found_among_others() {
        for (line, path) in [("4:memory:/a:b", Some("/a:b")), ("7:cpu,memory:/", Some("/")), ("0::/user.slice", None), ("", None)]
        {
            assert_eq!(path_of_v1(line), path, "{line}");
        }
    }
}
