use jiff::Timestamp;

use crate::{Effect, EventReason, EventType, Expiry, Stack, Ttl};

impl Expiry {
    /// The Event that announces it.
    pub(crate) fn warning(&self) -> Effect {
        let at = self.at.strftime("%FT%TZ");
        let note = match &self.blocked {
            Some(blocked) => format!("TTL ends at {at}; Stack is not deleted then: {blocked}"),
            None => format!(
                "TTL ends; Stack is deleted at {at} and its resources are destroyed; raise or remove the annotation driftless.dev/ttl \
                 to keep it"
            ),
        };
        Effect::Event { event_type: EventType::Warning, reason: EventReason::TtlEnds, note, revision: None, change_request: None }
    }
}

/// What the TTL of a Stack leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// No end is near. It is announced at that time.
    Goes(Timestamp),
    /// Its end was announced.
    Announced(Expiry),
    /// Its end is to be announced now.
    Announce(Expiry),
    /// It is to be deleted.
    Ended(Timestamp),
}

/// Decides what the TTL of a Stack leads to. A Stack is deleted only after its end was announced,
/// and only where that destroys its resources and lasts.
pub(crate) fn life(stack: &Stack, ttl: &Ttl, now: Timestamp) -> Life {
    let announced_at = ttl.ends.saturating_sub(ttl.warning).unwrap_or(Timestamp::MIN);
    if now < announced_at {
        return Life::Goes(announced_at);
    }
    let blocked = match &ttl.applied_by {
        Some(applied_by) => Some(format!(
            "{applied_by} applies it and would create it again; remove it from that source, which deletes it if it prunes"
        )),
        None if !stack.spec.destroy_on_finalize => Some(
            "spec.destroyOnFinalize is not set, so that its resources would remain; set it, or delete the Stack and its \
             resources"
                .into(),
        ),
        None => None,
    };
    match &stack.status.expiry {
        Some(expiry) if expiry.blocked == blocked && expiry.at >= ttl.ends => {
            let is_over = blocked.is_none() && expiry.at <= now;
            if is_over { Life::Ended(expiry.at) } else { Life::Announced(expiry.clone()) }
        }
        _ => {
            let soonest = if blocked.is_none() { now.saturating_add(ttl.warning).unwrap_or(Timestamp::MAX) } else { ttl.ends };
            Life::Announce(Expiry { at: ttl.ends.max(soonest), blocked })
        }
    }
}
