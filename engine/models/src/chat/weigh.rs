//! Keeps values small that are printed, compared or turned into text.
//!
//! The engine's fuel pays for steps, for texts and for the items of lists, but what lists hold is counted once: a list that holds
//! another one twice, which holds another one twice, is small to make and endless to print. Here a value costs a step for everything
//! that is reached from it, as often as it is reached. A namespace that holds itself is never paid.

use minijinja::{Environment, Error, Output, State, Value, escape_formatter, value::ValueKind};

use super::guard;

/// Pays for a value.
pub(super) fn weigh(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    if !is_container(value) {
        return Ok(());
    }
    let mut open = vec![value.clone()];
    while let Some(value) = open.pop() {
        let is_map = value.kind() == ValueKind::Map;
        // Objects of the engine that are no containers, such as macros, have nothing inside.
        let Ok(items) = value.try_iter() else { continue };
        for item in items {
            state.consume_fuel(1)?;
            if is_map
                && let Ok(held) = value.get_item(&item)
                && is_container(&held)
            {
                state.consume_fuel(1)?;
                open.push(held);
            }
            if is_container(&item) {
                open.push(item);
            }
        }
    }
    Ok(())
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Plain)
}

/// Makes printing pay, and every operand that [`guard`](super::guard) finds.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter(guard::FILTER, |state: &State<'_, '_>, value: Value| -> Result<Value, Error> {
        weigh(state, &value)?;
        Ok(value)
    });
    environment.set_formatter(|out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value| {
        // Captured and computed values come here without having been an operand.
        weigh(state, value)?;
        escape_formatter(out, state, value)
    });
}
