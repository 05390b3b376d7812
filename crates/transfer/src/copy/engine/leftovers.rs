//! Removes what an interrupted run has left at the target.

use super::CopyEngine;
use crate::copy::resume::LeftoverRemoval;
use crate::copy::server_inquiry::ServerInquiry;
use crate::copy::sides::CopySide;

/// Removes what an interrupted run has left and this one has not taken.
pub(super) async fn clear(engine: &mut CopyEngine<'_>) {
    let removal = engine.keeper.clear_leftovers(&mut engine.context);
    remove(engine, removal).await;
    if !engine.stopped() {
        engine.keeper.leftovers_cleared();
    }
}

/// Lists directories that are searched for leftovers, and waits for the removals.
pub(super) async fn remove(engine: &mut CopyEngine<'_>, removal: LeftoverRemoval) {
    for searches in removal.searches() {
        let listing = |search| engine.keeper.listing(&engine.context, search);
        let queries = searches.iter().map(listing).collect();
        let asked = engine.context.now();
        let answers = engine.ask_all(CopySide::Target, queries).await;
        if engine.stopped() {
            break;
        }
        for (search, answer) in searches.iter().zip(answers) {
            engine
                .keeper
                .on_listed(&mut engine.context, (search, asked), answer);
        }
    }
    if removal.is_begun() {
        engine.copy().await;
    }
}
