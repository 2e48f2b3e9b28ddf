//! The names of all schedules. Each puts itself here by a message of its own, so that none is missing; one that is gone
//! and could not be taken out is found by whoever lists them.

use super::Told;
use crate::model::command::{HomeCommand, Outcome, Refusal};
use crate::model::home::ScheduleNames;

/// Beyond the limit that callers are held to: those that were let in at the same moment.
const SLACK: usize = 500;

pub(super) fn apply(state: &mut Option<ScheduleNames>, told: Told<'_>) -> Result<Outcome, Refusal> {
    match told {
        Told::Command(HomeCommand::ListSchedule { name, created_at }) => {
            let names = state.get_or_insert_default();
            let known = names.created.get(name).copied();
            if known.is_none() && names.created.len() >= ScheduleNames::MAX + SLACK {
                return Err(Refusal::Full);
            }
            // A message of an earlier schedule of this name may come late.
            if known.is_none_or(|known| known < *created_at) {
                names.created.insert(name.clone(), *created_at);
            }
        }
        Told::Command(HomeCommand::UnlistSchedule { name, created_at }) => {
            if let Some(names) = state
                && names.created.get(name) == Some(created_at)
            {
                names.created.remove(name);
            }
        }
        Told::Command(
            HomeCommand::Acquire { .. }
            | HomeCommand::Release { .. }
            | HomeCommand::Take { .. }
            | HomeCommand::Schedule(_),
        ) => return Err(Refusal::NoRun),
        Told::Wake | Told::Settled(..) => {}
    }
    if state.as_ref().is_some_and(|names| names.created.is_empty()) {
        *state = None;
    }
    Ok(Outcome::Accepted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::schedule::ScheduleName;
    use crate::model::time::Timestamp;

    fn told(
        state: &mut Option<ScheduleNames>,
        name: &str,
        created_at: i64,
        there: bool,
    ) -> Result<(), Refusal> {
        let (name, created_at) = (ScheduleName::new(name).unwrap(), Timestamp(created_at));
        let command = if there {
            HomeCommand::ListSchedule { name, created_at }
        } else {
            HomeCommand::UnlistSchedule { name, created_at }
        };
        apply(state, Told::Command(&command)).map(drop)
    }

    #[test]
    fn a_schedule_is_told_from_others_of_its_name() {
        let mut state = None;
        for created in [2, 2, 1] {
            told(&mut state, "a", created, true).unwrap();
        }
        assert_eq!(state.as_ref().unwrap().created.values().collect::<Vec<_>>(), [&Timestamp(2)]);
        told(&mut state, "a", 1, false).unwrap();
        assert!(state.is_some(), "an earlier one is gone, this one is not");
        told(&mut state, "a", 2, false).unwrap();
        assert_eq!(state, None);
    }

    #[test]
    fn the_list_has_an_end() {
        let mut state = None;
        for n in 0..ScheduleNames::MAX + SLACK {
            told(&mut state, &format!("s{n}"), 1, true).unwrap();
        }
        assert_eq!(told(&mut state, "one-more", 1, true), Err(Refusal::Full));
        told(&mut state, "s0", 2, true).unwrap();
    }
}
