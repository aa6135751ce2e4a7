"""What translates ids: the models of this package, or CTranslate2's."""
