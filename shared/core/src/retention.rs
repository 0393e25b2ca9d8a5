use jiff::{SignedDuration, Timestamp};

/// How long a stored tree is kept. Its age is its manifest's; storing it again makes it young.
///
/// Whoever begins to use a tree takes one that [is usable](Self::is_usable); an older one counts as not stored, and is stored again.
/// It is deleted when it [has expired](Self::has_expired) and nothing names it. So between the last moment at which a look can read
/// that it is usable and its deletion lies the grace, which is far longer than a look takes from there to the Update that names it.
/// Whoever deletes reads the Updates after the age, and so sees every one that needs the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The age up to which a new Update may name a tree.
    pub keep: SignedDuration,
    /// How much older it is at least when it is deleted. Longer than any invocation of a function.
    pub grace: SignedDuration,
}

/// A tree as it lies in the bucket: when each of its parts was written, if it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredTree {
    /// Written last and deleted first: a tree is there when its manifest is.
    pub manifest: Option<Timestamp>,
    /// Its content.
    pub pack: Option<Timestamp>,
}

impl Retention {
    /// A tree is usable for so many days, and a day of grace follows.
    #[must_use]
    pub fn days(days: u32) -> Self {
        let day = SignedDuration::from_hours(24);
        Self { keep: day * i32::try_from(days).unwrap_or(i32::MAX), grace: day }
    }

    /// A new Update may name the tree whose manifest was written at that time.
    #[must_use]
    pub fn is_usable(&self, manifest: Timestamp, now: Timestamp) -> bool {
        now.duration_since(manifest) < self.keep
    }

    /// Whoever asks for the tree gets it made young, before the first clock says that it is not usable.
    #[must_use]
    pub fn wants_renewal(&self, manifest: Timestamp, now: Timestamp) -> bool {
        now.duration_since(manifest) >= self.keep - self.grace.min(self.keep / 2)
    }

    /// The tree may be deleted if nothing names it. One without a manifest is none: its storing, or its deletion, ended half-way.
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
    fn a_day_lies_between_the_last_use_of_a_tree_and_its_deletion() {
        assert_eq!(Retention::days(30), DAYS);
        let written = after_hours(0);
        for hours in 0..35 * 24 {
            let now = after_hours(hours);
            assert_eq!(DAYS.is_usable(written, now), hours < 30 * 24, "{hours}");
            assert_eq!(DAYS.has_expired(tree(Some(written)), now), hours >= 31 * 24, "{hours}");
        }
    }

    #[test]
    fn a_tree_is_renewed_before_anybody_finds_it_too_old() {
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
