//! The time limits that messages to a user name.

use std::time::Duration;

use jiff::SignedDuration;

/// The time limit of a fetch. It leaves time to store the tree: the function's time limit is two
/// minutes.
pub(super) const TIME: Duration = Duration::from_secs(90);

/// The time limit of a server's first answer, an SSH greeting or the HTTP capabilities, which does
/// not depend on the repository.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(15);

/// How long a silent server is not asked: an instance spends at most an eighth of its time on one.
pub(super) const REST: SignedDuration = SignedDuration::from_mins(2);
