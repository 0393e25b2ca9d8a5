//! Chance: the probabilities of everything that can go wrong, and the dice of each actor.

use std::{
    cell::{Cell, RefCell, RefMut},
    collections::{BTreeMap, HashMap},
};

use driftless_contract::Claim;
use jiff::SignedDuration;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng as _, SeedableRng as _},
};

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// An invocation ends before a call.
    Crash,
    /// An invocation is delayed before a call.
    Stall,
    /// A call fails and has no effect.
    Transient,
    /// A call has its effect and fails.
    LostAnswer,
    /// A message is delivered twice.
    Duplicate,
    /// A message is lost.
    Drop,
    /// The forwarder and the webhook send nothing.
    Deaf,
    /// A message is delayed.
    Delay,
    /// ECS forgets a client token, or does not know a new task yet; the bucket reports that a write
    /// was not the first.
    Forget,
    /// An artifact cannot be downloaded, or an operation fails.
    Fail,
    /// A task is killed.
    Kill,
    /// ECS starts no task for lack of capacity.
    Full,
    /// Something takes far longer than usual.
    Slow,
}

impl Trouble {
    pub(super) const ALL: [Self; 13] = [
        Self::Crash,
        Self::Stall,
        Self::Transient,
        Self::LostAnswer,
        Self::Duplicate,
        Self::Drop,
        Self::Deaf,
        Self::Delay,
        Self::Forget,
        Self::Fail,
        Self::Kill,
        Self::Full,
        Self::Slow,
    ];

    /// The name of its dice, and its highest probability in thousandths.
    fn parts(self) -> (&'static str, u32) {
        match self {
            Self::Crash => ("crash", 40),
            Self::Stall => ("stall", 60),
            Self::Transient => ("transient", 40),
            Self::LostAnswer => ("lost answer", 40),
            Self::Duplicate => ("duplicate", 400),
            Self::Drop => ("drop", 150),
            Self::Deaf => ("deaf", 1000),
            Self::Delay => ("delay", 300),
            Self::Forget => ("forget", 300),
            Self::Fail => ("fail", 300),
            Self::Kill => ("kill", 300),
            Self::Full => ("full", 500),
            Self::Slow => ("slow", 100),
        }
    }
}

/// The probability of each trouble, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Odds([u32; Trouble::ALL.len()]);

impl Odds {
    /// Some seeds go well, some badly, and some are wrong in a few ways only.
    pub(super) fn draw(seed: u64) -> Self {
        Self(Trouble::ALL.map(|trouble| {
            let (name, most) = trouble.parts();
            match Dice::new(seed, &["odds", name]).below(3) {
                0 => 0,
                1 => most / 8,
                _ => most,
            }
        }))
    }

    pub(super) fn of(self, trouble: Trouble) -> u32 {
        self.0[trouble as usize]
    }

    pub(super) fn without(mut self, troubles: &[Trouble]) -> Self {
        for trouble in troubles {
            self.0[*trouble as usize] = 0;
        }
        self
    }

    /// The same with another probability, in thousandths, for one of them.
    pub(super) fn with(mut self, trouble: Trouble, per_mille: u32) -> Self {
        self.0[trouble as usize] = per_mille;
        self
    }

    pub(super) fn only(self, trouble: Trouble) -> Self {
        let others = Trouble::ALL.into_iter().filter(|other| *other != trouble);
        self.without(&others.collect::<Vec<_>>())
    }

    /// The troubles with a probability above zero.
    pub(super) fn troubles(self) -> impl Iterator<Item = Trouble> {
        Trouble::ALL.into_iter().filter(move |trouble| self.of(*trouble) > 0)
    }
}

/// A source of choices.
pub(super) struct Dice(ChaCha8Rng);

impl Dice {
    /// The dice of a seed with this name, which are an independent stream.
    pub(super) fn new(seed: u64, name: &[&str]) -> Self {
        // FNV-1a, because the standard library's hashes differ between releases.
        let bytes = name.iter().flat_map(|part| part.bytes().chain([0]));
        let stream = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// From 0 to `below`, exclusive; 0 if `below` is 0.
    pub(super) fn below(&mut self, below: u32) -> u32 {
        self.0.next_u32().checked_rem(below).unwrap_or(0)
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        self.below(u32::try_from(length).unwrap_or(u32::MAX)) as usize
    }

    pub(super) fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < per_mille
    }

    /// From 0 to this many seconds, in milliseconds.
    pub(super) fn seconds(&mut self, most: u32) -> SignedDuration {
        SignedDuration::from_millis(self.below(most * 1000 + 1).into())
    }

    /// The same, but up to `slow` seconds if [`Trouble::Slow`] strikes.
    pub(super) fn seconds_or(&mut self, most: u32, slow: u32, odds: Odds) -> SignedDuration {
        let most = if self.chance(odds.of(Trouble::Slow)) { slow } else { most };
        self.seconds(most)
    }
}

/// The present probabilities, and dice for each actor and purpose: an additional choice of one,
/// such as for a new call of a function, changes no choice of another.
pub(super) struct Chances {
    seed: u64,
    pub(super) odds: Cell<Odds>,
    /// No task of this namespace starts.
    pub(super) outage: Cell<Option<&'static str>>,
    dice: RefCell<BTreeMap<(&'static str, &'static str), Dice>>,
    /// The number of tasks of a Pulumi stack so far, by claim.
    tasks: RefCell<HashMap<Claim, u32>>,
}

impl Chances {
    pub(super) fn new(seed: u64, odds: Odds) -> Self {
        let (odds, outage) = (Cell::new(odds), Cell::default());
        Self { seed, odds, outage, dice: RefCell::default(), tasks: RefCell::default() }
    }

    pub(super) fn dice(&self, actor: &'static str, purpose: &'static str) -> RefMut<'_, Dice> {
        RefMut::map(self.dice.borrow_mut(), |dice| {
            dice.entry((actor, purpose)).or_insert_with(|| Dice::new(self.seed, &[actor, purpose]))
        })
    }

    /// Returns whether something goes wrong now.
    pub(super) fn strikes(&self, actor: &'static str, trouble: Trouble) -> bool {
        let odds = self.odds.get().of(trouble);
        odds > 0 && self.dice(actor, trouble.parts().0).chance(odds)
    }

    /// The dice of a new task: those of the `n`-th task of its Pulumi stack.
    pub(super) fn of_task(&self, claim: &Claim) -> Dice {
        let mut tasks = self.tasks.borrow_mut();
        let n = tasks.entry(claim.clone()).or_default();
        *n += 1;
        Dice::new(self.seed, &["task", claim.as_str(), &n.to_string()])
    }
}
