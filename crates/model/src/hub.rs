//! Model names on a hub, and the directories they are kept in.
