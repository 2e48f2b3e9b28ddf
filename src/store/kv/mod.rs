//! The verbs of the port over any ordered key-value map: the embedded file and the simulation share them.
