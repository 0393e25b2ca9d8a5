use jiff::{SignedDuration, Timestamp};

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
