"""The contract's tests, by what they are about. Every docstring names the rule of `onceward.store` that it tests."""
