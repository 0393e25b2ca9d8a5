use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The maximum length of a message, in bytes: it may quote a tenant's value, and the API server
/// refuses a status of 3 MiB.
const MESSAGE_BYTES: usize = 8 << 10;

/// The message, or its beginning and a mark that it was cut.
pub(crate) fn cut(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES - 3));
        message.push('…');
    }
    message
}

/// Sets a condition. It keeps the time of the previous one if the status is the same.
pub(crate) fn set_condition(
    (type_, status, reason, message): (&str, &str, &str, String),
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let same = before.iter().find(|condition| condition.type_ == type_ && condition.status == status);
    Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message: cut(message),
        last_transition_time: same.map_or(Time(now), |condition| condition.last_transition_time.clone()),
        observed_generation: generation,
    }
}
