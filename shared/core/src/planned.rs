//! The changes that a preview plans for a guarded Stack, and their hash: what a person approves.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    Operation,
    bound::{self, MAX_PATH_BYTES, MAX_URN_BYTES},
};

/// The changes of a plan that the status of a Stack has.
const TOLD: usize = 20;
/// The paths in each list of a change there.
const TOLD_PATHS: usize = 20;

/// The hash of a plan: SHA-256 in lower-case hex. All 64 digits count; messages show
/// [`PlanHash::short`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PlanHash(String);

impl PlanHash {
    const DIGITS: usize = 64;
    const SHOWN: usize = 7;

    /// Reads a hash; `None` unless the text has exactly 64 digits of lower-case hex.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == Self::DIGITS && text.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }

    /// All digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first seven digits, for messages. They identify no plan.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..Self::SHOWN]
    }
}

impl From<[u8; 32]> for PlanHash {
    fn from(digest: [u8; 32]) -> Self {
        Self(base16ct::lower::encode_string(&digest))
    }
}

impl fmt::Display for PlanHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PlanHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a hash of a plan"))
    }
}

/// How a plan changes a resource, in the order in which changes are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// Another resource takes its place.
    Replace,
    /// It is deleted.
    Delete,
    /// It leaves the state and continues to exist (`retainOnDelete`).
    Forget,
    /// It is created.
    Create,
    /// It enters the state as it is.
    Import,
    /// Its properties change.
    Update,
    /// Pulumi's own options of it change, such as `protect`, and its properties do not.
    Options,
    /// The state takes over what a refresh found.
    Refresh,
    /// Outputs of the stack change.
    Outputs,
}

impl ChangeKind {
    /// All kinds, in order.
    pub const ALL: [Self; 9] = [
        Self::Replace,
        Self::Delete,
        Self::Forget,
        Self::Create,
        Self::Import,
        Self::Update,
        Self::Options,
        Self::Refresh,
        Self::Outputs,
    ];

    /// The name in documents and annotations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replace => "replace",
            Self::Delete => "delete",
            Self::Forget => "forget",
            Self::Create => "create",
            Self::Import => "import",
            Self::Update => "update",
            Self::Options => "options",
            Self::Refresh => "refresh",
            Self::Outputs => "outputs",
        }
    }

    /// The kind of a step of Pulumi that changes a resource. The steps within a replacement have
    /// none.
    #[must_use]
    pub fn of_step(operation: &str) -> Option<Self> {
        let kinds = [Self::Create, Self::Update, Self::Replace, Self::Delete, Self::Import];
        Self::parse(operation).filter(|kind| kinds.contains(kind))
    }

    /// The kind of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The first entries of a list, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Listed<T> {
    /// The number of all entries.
    pub count: u32,
    /// The first of them.
    pub first: Vec<T>,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

/// The plan of an update: a contract between the runner, the recorder and the reconciler. It has
/// names, counts and keyed digests, and no property values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PlannedChanges {
    /// The hash, which is what is approved. Equal plans have equal hashes, and any difference in
    /// [`PlanParts`] makes another one.
    pub hash: PlanHash,
    /// What the hash covers.
    pub parts: PlanParts,
    /// The operation that the plan is for: never a preview.
    pub operation: Operation,
    /// The number of resources by kind of change. A kind without resources is absent.
    pub counts: BTreeMap<ChangeKind, u32>,
    /// The changes, by kind and then by URN; see [`PlannedChanges::bounded`].
    pub changes: Listed<PlannedChange>,
    /// The inputs that are only known when the plan is applied.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub unknown: Listed<PlannedLeaf>,
    /// The inputs that are different in each preview, such as generated names. The hash does not
    /// cover their values.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub unstable: Listed<PlannedLeaf>,
    /// What advisory policies of policy packs say, as `policy "a" of pack "b": URN`. The hash does
    /// not cover it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<String>,
    /// When the plan was made. The hash does not cover it.
    pub made_at: Timestamp,
}

fn is_empty(list: &Listed<PlannedLeaf>) -> bool {
    list.count == 0
}

/// The parts of a plan, each as a digest, so that a stale plan can say which of them changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PlanParts {
    /// The version of the canonical form. Another release may cover more.
    pub version: u32,
    /// What the launcher knows: stack, backend, operation, flags and inputs.
    pub binding: PlanHash,
    /// The steps, properties and options of all resources.
    pub resources: PlanHash,
    /// The state that the plan starts from.
    pub state: PlanHash,
    /// The version of Pulumi, such as `v3.259.0`.
    pub pulumi: String,
    /// The digest of the source's tree, if the plan has unknown or unstable inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
}

/// A change of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PlannedChange {
    /// Its URN.
    pub urn: String,
    /// Its type. Empty in a plan of an older release. The URN does not say it: type and name may
    /// contain what separates them.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub resource_type: String,
    /// How it changes.
    pub kind: ChangeKind,
    /// The paths of the first properties that change, such as `tags.owner`, or the names of
    /// options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// The first properties whose change makes the provider replace it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced_by: Vec<String>,
}

/// An input of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PlannedLeaf {
    /// The URN of the resource.
    pub urn: String,
    /// The path of the input, such as `tags.owner`.
    pub path: String,
}

impl PlannedChanges {
    /// The maximum number of changes in the list. The rules of a cluster see no more.
    pub const MAX_CHANGES: usize = 1000;
    /// The maximum number of inputs in each of the other lists.
    pub const MAX_LEAVES: usize = 50;
    /// The maximum number of paths in each list of a change.
    pub const MAX_PATHS: usize = 100;
    /// The maximum number of texts of policy packs.
    pub const MAX_ADVICE: usize = 50;
    /// The maximum size of all lists together, in bytes of JSON.
    const MAX_BYTES: usize = 240 << 10;

    /// Returns whether the plan changes neither a resource nor the state of one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.values().all(|count| *count == 0)
    }

    /// The number of resources that change so.
    #[must_use]
    pub fn count(&self, kind: ChangeKind) -> u32 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// The hash of the plan together with what is shown of it. A task reports both, and can report
    /// the changes of another plan: an approval of this hash is one of these changes. `None` for a
    /// plan of which a status lacks something, which would be approved unseen.
    #[must_use]
    pub fn early_hash(&self) -> Option<PlanHash> {
        let plan = Self { made_at: Timestamp::UNIX_EPOCH, ..self.clone().shortened() };
        if !plan.is_whole() {
            return None;
        }
        let json = serde_json::to_string(&plan).ok()?;
        Some(PlanHash::from(<[u8; 32]>::from(Sha256::digest(format!("early {json}")))))
    }

    /// The plan, as far as a status has it.
    #[must_use]
    pub(crate) fn shortened(mut self) -> Self {
        self.changes.first.truncate(TOLD);
        for change in &mut self.changes.first {
            change.resource_type.clear();
            change.paths.truncate(TOLD_PATHS);
            change.replaced_by.truncate(TOLD_PATHS);
        }
        self.unknown.first.truncate(TOLD);
        self.unstable.first.truncate(TOLD);
        self.advice.clear();
        // Kubernetes stores whole seconds.
        self.made_at = Timestamp::from_second(self.made_at.as_second()).unwrap_or(self.made_at);
        self
    }

    /// Returns whether a shortened plan surely lacks nothing: paths have no count.
    fn is_whole(&self) -> bool {
        let lists = [
            (self.changes.count, self.changes.first.len()),
            (self.unknown.count, self.unknown.first.len()),
            (self.unstable.count, self.unstable.first.len()),
        ];
        let mut paths = self.changes.first.iter().flat_map(|change| [&change.paths, &change.replaced_by]);
        lists.into_iter().all(|(count, told)| usize::try_from(count) == Ok(told)) && paths.all(|paths| paths.len() < TOLD_PATHS)
    }

    /// Returns as much as is kept of a plan: less than 256 KiB of JSON.
    #[must_use]
    pub fn bounded(self) -> Self {
        let mut bytes = 0;
        let paths = |paths: &[String]| bound::paths(paths, Self::MAX_PATHS);
        let mut fits = |json: serde_json::Result<String>| {
            bytes += json.map_or(Self::MAX_BYTES, |json| json.len()) + 1;
            bytes <= Self::MAX_BYTES
        };
        let changes = self.changes.first.into_iter().take(Self::MAX_CHANGES).map(|change| PlannedChange {
            urn: bound::line(&change.urn, MAX_URN_BYTES),
            resource_type: bound::line(&change.resource_type, MAX_URN_BYTES),
            kind: change.kind,
            paths: paths(&change.paths),
            replaced_by: paths(&change.replaced_by),
        });
        let changes = changes.take_while(|change| fits(serde_json::to_string(change))).collect();
        let mut leaves = |leaves: Listed<PlannedLeaf>| {
            let first = leaves.first.into_iter().take(Self::MAX_LEAVES);
            let first = first.map(|leaf| PlannedLeaf {
                urn: bound::line(&leaf.urn, MAX_URN_BYTES),
                path: bound::line(&leaf.path, MAX_PATH_BYTES),
            });
            Listed { count: leaves.count, first: first.take_while(|leaf| fits(serde_json::to_string(leaf))).collect() }
        };
        let (unknown, unstable) = (leaves(self.unknown), leaves(self.unstable));
        let advice = self.advice.iter().take(Self::MAX_ADVICE).map(|text| bound::line(text, MAX_URN_BYTES));
        Self {
            parts: PlanParts {
                pulumi: bound::line(&self.parts.pulumi, MAX_PATH_BYTES),
                tree: self.parts.tree.as_deref().map(|tree| bound::line(tree, MAX_PATH_BYTES)),
                ..self.parts
            },
            changes: Listed { count: self.changes.count, first: changes },
            unknown,
            unstable,
            advice: advice.take_while(|text| fits(serde_json::to_string(text))).collect(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(digit: &str) -> PlanHash {
        PlanHash::parse(&digit.repeat(PlanHash::DIGITS)).unwrap()
    }

    fn plan(changes: usize, text: &str) -> PlannedChanges {
        let change = PlannedChange {
            urn: text.into(),
            resource_type: text.into(),
            kind: ChangeKind::Update,
            paths: vec![text.into(); 130],
            replaced_by: vec![text.into(); 130],
        };
        let leaf = PlannedLeaf { urn: text.into(), path: text.into() };
        let leaves = Listed { count: 300, first: vec![leaf; 300] };
        let tree = Some(text.to_owned());
        PlannedChanges {
            hash: hash("a"),
            parts: PlanParts {
                version: 1,
                binding: hash("b"),
                resources: hash("c"),
                state: hash("d"),
                pulumi: text.into(),
                tree,
            },
            operation: Operation::Up,
            counts: [(ChangeKind::Update, u32::try_from(changes).unwrap())].into(),
            changes: Listed { count: u32::try_from(changes).unwrap(), first: vec![change; changes] },
            unknown: leaves.clone(),
            unstable: leaves,
            advice: vec![text.into(); 300],
            made_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn hash_has_64_lower_case_digits() {
        let digits = "0123456789abcdef".repeat(4);
        let hash = PlanHash::parse(&digits).unwrap();
        assert_eq!((hash.as_str(), hash.short()), (digits.as_str(), "0123456"));
        assert_eq!(serde_json::from_str::<PlanHash>(&format!("{digits:?}")).unwrap(), hash);
        for bad in
            [&digits[1..], &format!("{digits}0"), &digits.to_uppercase(), &digits.replace('0', "é"), &digits.replace('0', "/")]
        {
            assert_eq!(PlanHash::parse(bad), None);
            assert!(serde_json::from_str::<PlanHash>(&format!("{bad:?}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_of_changes_have_names_and_an_order() {
        assert!(ChangeKind::ALL.is_sorted());
        for kind in ChangeKind::ALL {
            assert_eq!(ChangeKind::parse(kind.as_str()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert_eq!(ChangeKind::parse("replaces"), None);
    }

    #[test]
    fn plan_fits_into_a_status() {
        let few = plan(3, "urn:a");
        let bounded = few.clone().bounded();
        assert_eq!(
            (&bounded.changes.first[0].urn, bounded.changes.first.len(), &bounded.parts),
            (&few.changes.first[0].urn, 3, &few.parts)
        );
        assert_eq!((bounded.changes.first[0].paths.len(), bounded.unknown.first.len(), bounded.unknown.count), (100, 50, 300));
        for text in ["é".repeat(4000), "\n".repeat(4000), "x".into()] {
            let bounded = plan(3000, &text).bounded();
            let bytes = serde_json::to_string(&bounded).unwrap().len();
            assert!(bytes < 256 << 10 && !bounded.changes.first.is_empty() && bounded.changes.count == 3000, "{bytes}");
            assert_eq!(bounded.clone().bounded(), bounded);
        }
        assert!(!few.is_empty() && PlannedChanges { counts: [(ChangeKind::Update, 0)].into(), ..few }.is_empty());
    }
}
