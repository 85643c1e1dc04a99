"""The errors of tutelage; each says where, what was found, what was expected and what to do."""


class TutelageError(Exception):
    """Base of every error that a user may see; `exit_code` is the process's status."""

    exit_code = 5

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args)


class ProgramError(TutelageError):
    """The program file is wrong, or what it names is not there."""

    exit_code = 2


class DataError(TutelageError):
    """A data set holds a record that cannot be used."""


class RolloutError(TutelageError):
    """An episode could not be run to an end that can be judged."""


class TeacherError(TutelageError):
    """A teacher gave nothing that can be used."""


class BudgetError(TeacherError):
    """What may be spent is spent; raise the cap and run again."""

    exit_code = 8


class VerifierError(TutelageError):
    """A verifier could not reach a verdict."""


class TrainingError(TutelageError):
    """A stage cannot learn, or an optimiser step would not be finite."""


class StateError(TutelageError):
    """Something on disk is damaged, missing, full or in another's hands."""


class UsageError(StateError):
    """A command asks for what is not there or cannot be; nothing is wrong on disk."""

    exit_code = 2


class ServiceError(TutelageError):
    """A service (Prefect, MLflow, DVC) is absent or refuses."""

    exit_code = 2


class BusyError(TutelageError):
    """Another driver runs this program."""

    exit_code = 9


class OutOfDateError(TutelageError):
    """A stored plan no longer matches its program."""

    exit_code = 6


class Interrupted(TutelageError):  # noqa: N818 - an interruption is not a mistake
    """The run was asked to stop and can be resumed."""

    exit_code = 4
