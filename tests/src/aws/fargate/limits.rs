//! The memory and the processor time of a task, as limits that the kernel enforces.

use std::{fs, path::PathBuf};

/// The period of the limit of processor time, in microseconds.
const PERIOD: u64 = 100_000;

/// The CPU units of a vCPU.
const VCPU: u64 = 1024;

/// Returns whether this machine can enforce the memory of tasks.
#[must_use]
pub fn may_limit_memory() -> bool {
    Limits::new(&format!("try-{}", std::process::id()), 1, VCPU).memory.is_some()
}

/// The cgroups of a task, removed when they are dropped. One that this process may not create does not exist: then the task has no such
/// limit.
pub(super) struct Limits {
    memory: Option<Group>,
    cpu: Option<Group>,
}

impl Limits {
    /// The limits of a task with this much memory and these CPU units.
    pub(super) fn new(task: &str, mib: u64, cpu: u64) -> Self {
        let quota = cpu * PERIOD / VCPU;
        let memory = [("memory.limit_in_bytes", (mib << 20).to_string()), ("memory.max", (mib << 20).to_string())];
        let cpu = [("cpu.cfs_quota_us", quota.to_string()), ("cpu.max", format!("{quota} {PERIOD}"))];
        Self { memory: Group::new("memory", task, &memory), cpu: Group::new("cpu", task, &cpu) }
    }

    /// The files in which a process writes its id to have the limits, separated by spaces.
    pub(super) fn processes(&self) -> String {
        let groups = [&self.memory, &self.cpu].into_iter().flatten();
        groups.map(|group| group.0.join("cgroup.procs").display().to_string()).collect::<Vec<_>>().join(" ")
    }

    /// Returns whether the kernel has killed a process for lack of memory.
    pub(super) fn has_killed(&self) -> bool {
        let Some(Group(folder)) = &self.memory else { return false };
        let told = ["memory.oom_control", "memory.events"].map(|file| fs::read_to_string(folder.join(file)).unwrap_or_default());
        let kills = told.iter().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix("oom_kill "));
        kills.is_some_and(|kills| kills != "0")
    }
}

/// A cgroup.
struct Group(PathBuf);

impl Group {
    /// The cgroup of a task for a controller. The files of its limit, in versions 1 and 2, have these values.
    fn new(controller: &str, task: &str, [v1, v2]: &[(&str, String); 2]) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        // Version 1 allows one below that of this process. In version 2 a cgroup with processes can have children only if it is
        // the root, in which all may be created; the controllers share one folder.
        let (parent, (file, value)) = match own.lines().find_map(|line| path_of_v1(line, controller)) {
            Some(path) => (format!("/sys/fs/cgroup/{controller}{path}"), v1),
            None => ("/sys/fs/cgroup".into(), v2),
        };
        let folder = PathBuf::from(parent).join(format!("driftless-{task}"));
        fs::create_dir(&folder).or_else(|error| if folder.is_dir() { Ok(()) } else { Err(error) }).ok()?;
        // The folder may be that of another limit: one that cannot be set does not remove it.
        fs::write(folder.join(file), value).ok()?;
        let group = Self(folder);
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // If a process outlives its task, only an empty directory is left.
        let _: std::io::Result<()> = fs::remove_dir(&self.0);
    }
}

/// The path of a controller of version 1 in a line of `/proc/self/cgroup`, such as `4:memory:/user.slice`.
fn path_of_v1<'a>(line: &'a str, wanted: &str) -> Option<&'a str> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    controllers.split(',').any(|controller| controller == wanted).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_is_found_among_others() {
        for (line, path) in [
            ("4:memory:/a:b", Some("/a:b")),
            ("7:cpu,memory:/", Some("/")),
            ("0::/user.slice", None),
            ("1:cpu:/", None),
            ("", None),
        ] {
            assert_eq!(path_of_v1(line, "memory"), path, "{line}");
        }
    }

    #[test]
    fn task_has_its_share_of_a_processor() {
        let limits = Limits::new(&format!("share-{}", std::process::id()), 64, 256);
        let Some(Group(folder)) = &limits.cpu else {
            println!("skipped: this process may create no cgroup for processor time");
            return;
        };
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let quota = read("cpu.cfs_quota_us").or_else(|| read("cpu.max")).unwrap();
        assert_eq!(quota.split_whitespace().next(), Some("25000"));
        assert!(limits.processes().contains(&folder.display().to_string()));
    }
}
