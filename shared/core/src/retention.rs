use jiff::{SignedDuration, Timestamp};

/// How long a stored tree is kept. The age of a tree is that of its manifest; storing the tree
/// again resets it.
///
/// A run starts only from a tree that [is usable](Self::is_usable); an older one counts as not
/// stored and is stored again. A tree is deleted when it [has expired](Self::has_expired) and no
/// Update names it. The grace period between the two is far longer than a reconciliation takes from
/// its check of the age to the Update that names the tree. The deletion reads the Updates after the
/// age, so it sees every Update that needs the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The age up to which a new Update may name a tree.
    pub keep: SignedDuration,
    /// How much older a tree is at least when it is deleted. Longer than any invocation of a
    /// function.
    pub grace: SignedDuration,
}

/// A stored tree: when each of its parts was written, if it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredTree {
    /// Written last and deleted first: a tree exists if its manifest does.
    pub manifest: Option<Timestamp>,
    /// Its content.
    pub pack: Option<Timestamp>,
}

impl Retention {
    /// A tree is usable for this many days, followed by a day of grace.
    #[must_use]
    pub fn days(days: u32) -> Self {
        let day = SignedDuration::from_hours(24);
        Self { keep: day * i32::try_from(days).unwrap_or(i32::MAX), grace: day }
    }

    /// Returns whether a new Update may name the tree whose manifest was written at that time.
    #[must_use]
    pub fn is_usable(&self, manifest: Timestamp, now: Timestamp) -> bool {
        now.duration_since(manifest) < self.keep
    }

    /// Returns whether a request for the tree stores it again: early enough that no function's
    /// clock counts it as unusable first.
    #[must_use]
    pub fn wants_renewal(&self, manifest: Timestamp, now: Timestamp) -> bool {
        now.duration_since(manifest) >= self.keep - self.grace.min(self.keep / 2)
    }

    /// Returns whether the tree may be deleted if no Update names it. A pack without a manifest is
    /// left from an interrupted store or deletion.
    #[must_use]
    pub fn has_expired(&self, tree: StoredTree, now: Timestamp) -> bool {
        let age = |written: Timestamp| now.duration_since(written);
        match tree {
            StoredTree { manifest: Some(manifest), .. } => age(manifest) >= self.keep + self.grace,
            StoredTree { manifest: None, pack } => pack.is_some_and(|pack| age(pack) >= self.grace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAYS: Retention = Retention { keep: SignedDuration::from_hours(30 * 24), grace: SignedDuration::from_hours(24) };

    fn after_hours(hours: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours)
    }

    fn tree(manifest: Option<Timestamp>) -> StoredTree {
        StoredTree { manifest, pack: Some(Timestamp::UNIX_EPOCH) }
    }

    #[test]
    fn tree_is_deleted_a_day_after_its_last_use_at_the_earliest() {
        assert_eq!(Retention::days(30), DAYS);
        let written = after_hours(0);
        for hours in 0..35 * 24 {
            let now = after_hours(hours);
            assert_eq!(DAYS.is_usable(written, now), hours < 30 * 24, "{hours}");
            assert_eq!(DAYS.has_expired(tree(Some(written)), now), hours >= 31 * 24, "{hours}");
        }
    }

    #[test]
    fn tree_is_renewed_before_it_is_too_old() {
        for retention in [DAYS, Retention::days(1)] {
            let begin = (0..100_000).find(|hours| retention.wants_renewal(after_hours(0), after_hours(*hours))).unwrap();
            let end = (0..100_000).find(|hours| !retention.is_usable(after_hours(0), after_hours(*hours))).unwrap();
            assert!(0 < begin && begin < end, "{retention:?}: {begin} {end}");
        }
    }

    #[test]
    fn a_pack_without_a_manifest_expires_after_the_grace() {
        assert!(!DAYS.has_expired(tree(None), after_hours(23)));
        assert!(DAYS.has_expired(tree(None), after_hours(24)));
        assert!(!DAYS.has_expired(StoredTree::default(), after_hours(1_000)));
    }
}
