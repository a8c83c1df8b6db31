//! How long everything takes, as data: see [`Profile`].

use std::borrow::BorrowMut;

use bevy_ecs::prelude::World;
use entensor_systems::{GraphProfile, Profile, ProfileConfig};

use crate::engine::{Engine, GraphId};

impl<W: BorrowMut<World>> Engine<W> {
    /// Begins to take times of passes, runs, splits, copies and ops, or to take them in another way; `None` ends it. Off unless asked for. What
    /// was gathered before is forgotten.
    ///
    /// The times are in the World's resource [`Profile`], for overlays and systems of the user's own. A run that is timed as a whole costs
    /// 0.25 µs more, one that is timed in parts another 0.1 µs a part (on a 2.3 GHz Zen core of 2017; half of that on a recent one); the first run of a graph makes the memory, and later ones allocate
    /// nothing.
    ///
    /// ```
    /// use entensor::{DType, Engine, GraphBuilder, ProfileConfig};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let mut g = GraphBuilder::new("squares");
    /// let x = g.input("x", DType::F32, &[4])?;
    /// let y = g.sqr(x)?;
    /// g.output("y", y)?;
    /// let graph = engine.add_graph(g);
    /// engine.write(graph, x, &[1.0_f32, 2.0, 3.0, 4.0])?;
    ///
    /// engine.set_profile(Some(ProfileConfig::default()));
    /// (0..100).try_for_each(|_| engine.run(graph))?;
    ///
    /// let profile = engine.profile_of(graph).expect("it ran");
    /// assert_eq!(profile.runs.count, 100);
    /// // A graph as short as this is timed in parts every 64th run.
    /// assert!(profile.ops[0].text.starts_with("sqr") && profile.ops[0].figures.count >= 2);
    /// println!("{} ns, one of a hundred more than {} ns", profile.runs.p50_ns, profile.runs.p99_ns);
    ///
    /// engine.reset_profile();
    /// assert_eq!(engine.profile_of(graph).expect("it is kept").runs.count, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_profile(&mut self, config: Option<ProfileConfig>) {
        let world = self.world_mut();
        match config {
            Some(config) => world.insert_resource(Profile::new(config)),
            None => drop(world.remove_resource::<Profile>()),
        }
    }

    /// The times, if they are taken.
    #[must_use]
    pub fn profile(&self) -> Option<&Profile> {
        self.world().get_resource::<Profile>()
    }

    /// Times of a graph; `None` if they are not taken, or it has not run since.
    #[must_use]
    pub fn profile_of(&self, graph: GraphId) -> Option<GraphProfile> {
        self.profile()?.graph(graph.0)
    }

    /// Forgets the times so far, and goes on taking them.
    pub fn reset_profile(&mut self) {
        if let Some(mut profile) = self.world_mut().get_resource_mut::<Profile>() {
            profile.reset();
        }
    }
}
