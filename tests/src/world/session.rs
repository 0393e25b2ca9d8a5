//! The sessions of child processes, in which their descendants are found and ended.

use std::{fs, path::Path, time::Duration};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};

/// Where every task's container sees its own folders: a task on Fargate has a machine of its own.
/// Each has them there in a mount namespace.
pub const TASK: &str = "/tmp/driftless-task";
/// The working directories of tasks' processes, beside the folders of the world.
const OF_TASKS: [&str; 2] = [TASK, driftless_contract::SHARE];

/// The session of the process with this folder in `/proc`. `None` if it has ended.
pub(super) fn session_of(process: &Path) -> Option<Pid> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    // The name before the last parenthesis may contain anything; then come state, parent, group,
    // session.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    if fields.next()? == "Z" { None } else { Pid::from_raw(fields.nth(2)?.parse().ok()?) }
}

/// The live processes of a session that work below `root` or [`OF_TASKS`]. A process id may be
/// reused by another process, which works elsewhere.
fn members(session: Pid, root: &Path) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter(|process| {
            let path = process.path();
            session_of(&path) == Some(session)
                && fs::read_link(path.join("cwd"))
                    .is_ok_and(|cwd| cwd.starts_with(root) || OF_TASKS.iter().any(|place| cwd.starts_with(place)))
        })
        .filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// Kills the processes of a session until none is left: one may fork in between, and none ends at
/// once.
pub(super) fn kill_session(session: Pid, root: &Path) {
    for _ in 0..1000 {
        let members = members(session, root);
        if members.is_empty() {
            break;
        }
        for member in members {
            let _ = kill_process(member, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills the processes that an earlier world in `root` has left running, for example after a kill
/// -9.
pub(super) fn kill_leftovers(root: &Path) -> Result<()> {
    let Ok(files) = fs::read_dir(root.join("pids")) else { return Ok(()) };
    for file in files {
        let text = fs::read_to_string(file?.path())?;
        if let Some(session) = text.trim().parse().ok().and_then(Pid::from_raw) {
            kill_session(session, root);
        }
    }
    Ok(())
}
