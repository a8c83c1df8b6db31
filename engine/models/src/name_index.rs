//! A hash index over names, texts or bytes, that are stored elsewhere.
//!
//! Vocabularies have tens of thousands of names that already lie in one arena; a `HashMap<String, _>` would store
//! each of them a second time. The index keeps four bytes per name and asks its caller for the text.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

/// Maps names to positions in the caller's list.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameIndex {
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl NameIndex {
    /// Adds `name` at `position`, or gives the position that already has this name.
    ///
    /// `name_of` gives the text of every position added before.
    pub(crate) fn insert<'a, N: Hash + Eq + ?Sized + 'a>(
        &mut self,
        name: &N,
        position: u32,
        name_of: impl Fn(u32) -> &'a N,
    ) -> Result<(), u32> {
        if let Some(earlier) = self.find(name, &name_of) {
            return Err(earlier);
        }
        let Self { table, hasher } = self;
        table.insert_unique(hasher.hash_one(name), position, |&other| hasher.hash_one(name_of(other)));
        Ok(())
    }

    /// The position of `name`.
    pub(crate) fn find<'a, N: Hash + Eq + ?Sized + 'a>(&self, name: &N, name_of: impl Fn(u32) -> &'a N) -> Option<u32> {
        self.table.find(self.hasher.hash_one(name), |&position| name_of(position) == name).copied()
    }
}
