//! The users' actions, and their times.

use jiff::{SignedDuration, Timestamp};

use super::{
    chances::Dice,
    hostile::Attack,
    objects::{GUARDED, HOSTILE, QUIET},
};

/// The minimum duration of the disturbance, which is half of the maximum.
const DISTURBANCE_SECONDS: u32 = 600;
/// By then, all initial objects exist.
pub(super) const MADE_WITHIN: SignedDuration = SignedDuration::from_secs(61);

/// An action of a user.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    CreateStack(usize),
    CreateProgram,
    EditStack(usize),
    Request(usize),
    /// With the annotation; `false` resumes it.
    Suspend(usize, bool),
    /// Turns on drift checks once a minute and the fix of drift; `false` turns both off.
    Watch(usize, bool),
    /// Asks to adopt the drift that the current check finds, or the last one found, and ends the
    /// fix of drift.
    Adopt(usize),
    /// Makes the namespace another operator's; `false` reverts that.
    GiveAway(bool),
    DeleteStack(usize),
    /// The current one; with force, it is deleted at once, in spite of its finalizer.
    DeleteUpdateOf {
        stack: usize,
        force: bool,
    },
    EditProgram {
        broken: bool,
    },
    Push {
        broken: bool,
    },
    /// All archives are refused, as a permanent failure; `false` accepts them.
    Refuse(bool),
    EditSecret,
    /// Sets `spec.driftless.retries`.
    Retries {
        stack: usize,
        limit: u32,
        first_backoff_seconds: Option<u32>,
    },
    /// Gives a Stack this many minutes of life from its creation.
    Ttl {
        stack: usize,
        minutes: u32,
    },
    /// A user's Update, in the Workspace of a Stack.
    CreateUpdate {
        stack: usize,
        operation: &'static str,
    },
    /// The last Update that a user created.
    DeleteUpdate,
    /// All plans of the Stack need an approval, or only some; `None` needs none.
    Guard(usize, Option<&'static str>),
    /// The cluster's admission policy is as shipped; `false` makes it forbid nothing.
    Policy(bool),
    TerminateNamespace,
    /// A tenant of another namespace creates its Secret, its Program and its Stack.
    Settle(&'static str),
    EditQuietStack,
    EditQuietSecret,
    /// The quiet Stack is deleted, after its Secret.
    DeleteQuietStack,
    /// With a number that determines the choices of the attack.
    Attack(Attack, u32),
}

impl Action {
    /// Returns whether runs or fetches fail because of it, or a prerequisite is missing.
    pub(super) fn fails(self) -> bool {
        matches!(
            self,
            Self::Push { broken: true }
                | Self::EditProgram { broken: true }
                | Self::Refuse(_)
                | Self::DeleteUpdateOf { .. }
                | Self::DeleteStack(0)
                | Self::Ttl { .. }
        )
    }

    /// Returns whether it is not possible in a terminating namespace.
    pub(super) fn needs_namespace(self) -> bool {
        !matches!(
            self,
            Self::DeleteUpdateOf { .. }
                | Self::Suspend(_, false)
                | Self::Watch(_, false)
                | Self::GiveAway(_)
                | Self::Refuse(_)
                | Self::Policy(_)
                | Self::Settle(_)
                | Self::EditQuietStack
                | Self::EditQuietSecret
                | Self::DeleteQuietStack
                | Self::Attack(..)
        )
    }

    /// Returns whether it reverts another action.
    pub(super) fn takes_back(self) -> bool {
        matches!(
            self,
            Self::Suspend(_, false)
                | Self::Watch(_, false)
                | Self::GiveAway(false)
                | Self::Refuse(false)
                | Self::Policy(true)
                | Self::Attack(Attack::Unwatch, _)
        )
    }

    /// Returns whether only the sweep sees its effect: an Update without a Stack that waits, one
    /// that was deleted by force, a task that does not end, the label of a namespace, or an
    /// annotation that the forwarder does not watch.
    pub(super) fn needs_sweep(self) -> bool {
        matches!(
            self,
            Self::CreateUpdate { .. }
                | Self::DeleteUpdateOf { force: true, .. }
                | Self::GiveAway(_)
                | Self::TerminateNamespace
                | Self::Ttl { .. }
                | Self::Settle(HOSTILE)
                | Self::Attack(..)
        )
    }
}

/// The actions of a run, each with its time, and the end of the disturbance.
pub(super) fn script(dice: &mut Dice, begin: Timestamp) -> (Vec<(Timestamp, Action)>, Timestamp) {
    let length = DISTURBANCE_SECONDS + dice.below(DISTURBANCE_SECONDS);
    let stacks = 2 + dice.index(3);
    let mut script = vec![
        (begin + dice.seconds(60), Action::EditSecret),
        (begin + dice.seconds(60), Action::CreateProgram),
        (begin + dice.seconds(60), Action::Push { broken: false }),
    ];
    script.extend((0..stacks).map(|stack| (begin + dice.seconds(60), Action::CreateStack(stack))));
    for _ in 0..2 + dice.below(8) {
        let stack = dice.index(stacks);
        let broken = dice.chance(250);
        let action = match dice.below(14) {
            12.. => Action::EditSecret,
            0..3 => Action::EditStack(stack),
            3..5 => Action::Request(stack),
            5..7 => Action::EditProgram { broken },
            7..10 => Action::Push { broken },
            10 => Action::DeleteUpdateOf { stack, force: dice.chance(300) },
            _ => Action::DeleteStack(stack),
        };
        script.push((begin + MADE_WITHIN + dice.seconds(length - 61), action));
    }
    let end = begin + SignedDuration::from_secs(length.into());
    for _ in 0..dice.below(4) {
        let at = begin + MADE_WITHIN + dice.seconds(length - 61);
        let operation = if dice.chance(500) { "up" } else { "refresh" };
        script.push((at, Action::CreateUpdate { stack: dice.index(stacks), operation }));
        if dice.chance(500) {
            script.push((at + dice.seconds(180), Action::DeleteUpdate));
        }
    }
    if dice.chance(500) {
        let at = begin + MADE_WITHIN + dice.seconds(length - 61);
        let stack = dice.index(stacks);
        script.push((at, Action::Request(stack)));
        script.push((at + dice.seconds(180), Action::DeleteUpdateOf { stack, force: false }));
    }
    if dice.chance(125) {
        script.push((end - dice.seconds(180), Action::TerminateNamespace));
    }
    if dice.chance(300) {
        let (at, stack) = (begin + MADE_WITHIN + dice.seconds(length - 61), dice.index(stacks));
        script.push((at, Action::Suspend(stack, true)));
        script.push((end.min(at + dice.seconds(300)), Action::Suspend(stack, false)));
    }
    if dice.chance(500) {
        let (at, stack) = (begin + MADE_WITHIN + dice.seconds(length / 2), dice.index(stacks));
        script.push((at, Action::Watch(stack, true)));
        script.push((end, Action::Watch(stack, false)));
    }
    if dice.chance(250) {
        let at = begin + MADE_WITHIN + dice.seconds(length - 61);
        script.push((at, Action::GiveAway(true)));
        script.push((end.min(at + dice.seconds(400)), Action::GiveAway(false)));
    }
    if dice.chance(300) {
        let at = begin + MADE_WITHIN + dice.seconds(length / 2);
        script.push((at, Action::Refuse(true)));
        script.push((at + dice.seconds(30), Action::Push { broken: false }));
        let mended = at + dice.seconds(120);
        script.push((mended, Action::Refuse(false)));
        // No event reports that, so users have to request it. A fetch that started before may be
        // refused up to a minute later.
        script.extend((0..stacks).map(|stack| (mended + MADE_WITHIN + dice.seconds(60), Action::Request(stack))));
    }
    (script, end)
}

/// Requests to adopt drift, for every other Stack that is checked.
pub(super) fn adoptions(script: &[(Timestamp, Action)], end: Timestamp) -> Vec<(Timestamp, Action)> {
    let watched = script.iter().filter_map(|(at, action)| match action {
        Action::Watch(stack, true) if at.as_second() % 2 == 0 => Some((*at, *stack)),
        _ => None,
    });
    let asks = |(at, stack)| (1..8).map(move |n| (at + SignedDuration::from_secs(97 * n), Action::Adopt(stack)));
    watched.flat_map(asks).filter(|(at, _)| *at < end).collect()
}

/// The retries and the TTLs of the Stacks that a script creates, from their own dice.
pub(super) fn lives(dice: &mut Dice, script: &[(Timestamp, Action)], end: Timestamp) -> Vec<(Timestamp, Action)> {
    let mut lives = Vec::new();
    for (created, action) in script {
        let Action::CreateStack(stack) = *action else { continue };
        let created = *created + MADE_WITHIN;
        if dice.chance(400) {
            let (limit, first_backoff_seconds) = (dice.below(4), [None, Some(1), Some(5)][dice.index(3)]);
            lives.push((created + dice.seconds(120), Action::Retries { stack, limit, first_backoff_seconds }));
        }
        if dice.chance(150) {
            // Some have ended when they are set.
            let minutes = 4 + dice.below(12);
            lives.push((end.min(created + dice.seconds(900)), Action::Ttl { stack, minutes }));
        }
    }
    lives
}

/// The actions of the run for single faults: a Stack of each kind of source, one of which needs
/// approvals after its first run, an edit, a push, a request, a new Secret and a deletion.
pub(super) fn calm_script(begin: Timestamp) -> (Vec<(Timestamp, Action)>, Timestamp) {
    let actions = [
        (0, Action::EditSecret),
        (0, Action::CreateProgram),
        (0, Action::Push { broken: false }),
        (0, Action::Policy(true)),
        (1, Action::CreateStack(0)),
        (1, Action::CreateStack(1)),
        (200, Action::Guard(GUARDED, Some("required"))),
        (300, Action::EditStack(0)),
        (300, Action::Push { broken: false }),
        (600, Action::Request(1)),
        (600, Action::EditSecret),
        (900, Action::DeleteStack(0)),
    ];
    let at = |seconds| begin + SignedDuration::from_secs(seconds);
    (actions.into_iter().map(|(seconds, action)| (at(seconds), action)).collect(), at(901))
}

/// The actions that make Stacks guarded: one all of whose plans need an approval, and one of whose
/// plans some do.
pub(super) fn guarded(dice: &mut Dice, begin: Timestamp, end: Timestamp, without_policy: bool) -> Vec<(Timestamp, Action)> {
    let mut script = vec![(begin, Action::Policy(true))];
    for (stack, policy) in [(GUARDED, "required"), (3, "unless replace")] {
        script.push((begin + MADE_WITHIN + dice.seconds(60), Action::Guard(stack, Some(policy))));
        if dice.chance(200) {
            script.push((end - dice.seconds(300), Action::Guard(stack, None)));
        }
    }
    if without_policy || dice.chance(400) {
        let at = begin + MADE_WITHIN + dice.seconds(300);
        script.push((at, Action::Policy(false)));
        script.push((end.min(at + dice.seconds(600)), Action::Policy(true)));
    }
    script
}

/// The actions of both tenants, each with its time. The quiet Stack's last change comes at the end
/// of the disturbance.
pub(super) fn of_tenants(dice: &mut Dice, begin: Timestamp, end: Timestamp) -> Vec<(Timestamp, Action)> {
    let settled = begin + MADE_WITHIN;
    let length = u32::try_from(end.duration_since(settled).as_secs()).unwrap_or_default();
    let mut script = vec![(begin + dice.seconds(60), Action::Settle(QUIET)), (begin + dice.seconds(60), Action::Settle(HOSTILE))];
    for _ in 0..dice.below(3) {
        let action = if dice.chance(500) { Action::EditQuietStack } else { Action::EditQuietSecret };
        script.push((settled + dice.seconds(length), action));
    }
    script.push((end, if dice.chance(300) { Action::DeleteQuietStack } else { Action::EditQuietStack }));
    for _ in 0..5 + dice.below(11) {
        let attack = Attack::ALL[dice.index(Attack::ALL.len())];
        script.push((settled + dice.seconds(length), Action::Attack(attack, dice.below(1000))));
    }
    script.push((end, Action::Attack(Attack::Unwatch, 0)));
    script
}
