use jiff::{SignedDuration, Timestamp};

use crate::{Effect, EventReason, EventType, Expiry, Stack};

/// The limited life of a Stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ttl {
    /// When it ends.
    pub ends: Timestamp,
    /// The least time between the warning and the deletion.
    pub warning: SignedDuration,
    /// What applies the Stack and would create it again, such as `Kustomization flux-system/apps`.
    pub applied_by: Option<String>,
}

impl Ttl {
    const SHORTEST: SignedDuration = SignedDuration::from_mins(1);
    const LONGEST: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
    const LONGEST_WARNING: SignedDuration = SignedDuration::from_hours(24);

    /// Reads the TTL of a Stack, a duration such as `72h` from its creation. The warning comes a
    /// day before the end, and of a short TTL after its first half.
    ///
    /// # Errors
    /// The text is no duration within the limits. The message is the end of a sentence, with the
    /// value and the remedy.
    pub fn parse(text: &str, created: Timestamp, applied_by: Option<String>) -> Result<Self, String> {
        let is_valid = |ttl: &SignedDuration| *ttl >= Self::SHORTEST && *ttl <= Self::LONGEST;
        let parsed: SignedDuration = text
            .parse()
            .ok()
            .filter(is_valid)
            .ok_or_else(|| format!("{text:?}; write a duration of at least 1m and at most 87600h, such as 72h"))?;
        // Kubernetes stores whole seconds.
        let seconds = |seconds: i64| SignedDuration::from_secs(seconds);
        let warning = seconds(parsed.as_secs() / 2).min(Self::LONGEST_WARNING);
        let ends = created.saturating_add(seconds(parsed.as_secs())).unwrap_or(Timestamp::MAX);
        Ok(Self { ends, warning, applied_by })
    }
}

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
