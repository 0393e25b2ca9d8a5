//! The breadth-first search through all states, so that a printed path is a shortest one.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    fmt,
    time::{Duration, Instant},
};

use super::{
    Bounds, Breakage, Case,
    scenario::start,
    state::{Scenario, State},
    steps::Action,
};

/// The result of a check.
#[derive(Debug)]
pub struct Report {
    /// The number of different states.
    pub states: usize,
    /// The number of steps between them.
    pub transitions: usize,
    /// The length of the longest of the shortest paths to a state.
    pub depth: usize,
    /// The number of states at rest.
    pub rests: usize,
    /// Every state within the bounds was visited.
    pub is_complete: bool,
    /// The duration.
    pub took: Duration,
    /// The broken rule with its details, and the path to it.
    pub violation: Option<(String, Vec<String>)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, depth, rests, is_complete, took, violation } = self;
        write!(f, "{states} states, {rests} at rest, {transitions} transitions, depth {depth}, {:.1} s", took.as_secs_f64())?;
        match violation {
            Some((violation, path)) => {
                let path = path.iter().enumerate().map(|(position, step)| format!("\n  {position:3} {step}"));
                write!(f, "; violation: {violation}{}", path.collect::<String>())
            }
            None if *is_complete => write!(f, "; no violation"),
            None => write!(f, "; stopped before all states were seen, no violation so far"),
        }
    }
}

/// The first predecessor of a state.
struct Seen {
    from: u32,
    action: Option<Action>,
    depth: u32,
    is_rest: bool,
}

/// Checks a case within bounds, up to this many states.
#[must_use]
pub fn check(case: Case, bounds: Bounds, breakage: Option<Breakage>, most_states: usize) -> Report {
    let begin = Instant::now();
    let (scenario, first) = start(case, bounds, breakage);
    let mut search = Search { known: HashMap::new(), seen: Vec::new(), edges: Vec::new(), ahead: VecDeque::new() };
    search.add(first, 0, None, &scenario);
    let mut violation = None;
    while let Some((id, state)) = search.ahead.pop_front() {
        if let Some(broken) = &state.violation {
            violation = Some((broken.clone(), id));
            break;
        }
        if search.seen.len() >= most_states {
            search.ahead.push_front((id, state));
            break;
        }
        for (action, next) in state.successors(&scenario) {
            let to = search.add(next, id, Some(action), &scenario);
            search.edges.push((id, to));
        }
    }
    let is_complete = search.ahead.is_empty();
    if violation.is_none() && is_complete {
        violation = search.stuck().map(|id| ("rest: it never comes to rest from here".to_owned(), id));
    }
    Report {
        states: search.seen.len(),
        transitions: search.edges.len(),
        depth: search.seen.iter().map(|seen| seen.depth as usize).max().unwrap_or_default(),
        rests: search.seen.iter().filter(|seen| seen.is_rest).count(),
        is_complete,
        took: begin.elapsed(),
        violation: violation.map(|(broken, id)| {
            let path = search.path(id);
            (broken, tell(&path, &scenario, start(case, bounds, breakage).1))
        }),
    }
}

struct Search {
    /// The visited states, by hash.
    known: HashMap<u64, u32>,
    seen: Vec<Seen>,
    edges: Vec<(u32, u32)>,
    ahead: VecDeque<(u32, State)>,
}

impl Search {
    fn add(&mut self, state: State, from: u32, action: Option<Action>, scenario: &Scenario) -> u32 {
        // 2³² states do not fit into memory.
        let id = u32::try_from(self.seen.len()).unwrap_or(u32::MAX);
        match self.known.entry(state.hash()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                new.insert(id);
                let depth = self.seen.get(from as usize).map_or(0, |before| before.depth + 1);
                self.seen.push(Seen { from, action, depth, is_rest: state.unrest(scenario).is_none() });
                self.ahead.push_back((id, state));
                id
            }
        }
    }

    /// The first state without a path to rest.
    fn stuck(&mut self) -> Option<u32> {
        // The edges, ordered by their targets.
        self.edges.sort_unstable_by_key(|(_, to)| *to);
        let mut reaches: Vec<bool> = self.seen.iter().map(|seen| seen.is_rest).collect();
        let mut ahead: Vec<u32> = (0..).zip(&reaches).filter(|(_, is_rest)| **is_rest).map(|(id, _)| id).collect();
        while let Some(id) = ahead.pop() {
            let first = self.edges.partition_point(|(_, to)| *to < id);
            for (from, _) in self.edges[first..].iter().take_while(|(_, to)| *to == id) {
                if !std::mem::replace(&mut reaches[*from as usize], true) {
                    ahead.push(*from);
                }
            }
        }
        (0..).zip(reaches).find(|(_, reaches)| !reaches).map(|(id, _)| id)
    }

    fn path(&self, mut id: u32) -> Vec<Action> {
        let mut path = Vec::new();
        while let Seen { from, action: Some(action), .. } = self.seen[id as usize] {
            path.push(action);
            id = from;
        }
        path.reverse();
        path
    }
}

/// Describes the steps of a path, and the state at its end.
fn tell(path: &[Action], scenario: &Scenario, mut state: State) -> Vec<String> {
    let mut told = Vec::new();
    for action in path {
        let (next, what) = state.after(*action, scenario);
        told.push(what);
        state = next;
    }
    let unrest = state.unrest(scenario).unwrap_or_default();
    told.push(format!("{unrest}\n{state}"));
    told
}
