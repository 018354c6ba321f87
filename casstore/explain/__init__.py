"""Why a file is served, or why it isn't: field by field, with how many others share its fate and how to undo it."""
