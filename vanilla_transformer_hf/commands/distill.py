"""
Train a student on the translations of its teacher (sequence-level distillation, Kim and Rush 2016, arXiv 1606.07947):

    vanilla-transformer distill outputs/quickstart quickstart --decoder_layers 1 --output_dir outputs/student
    vanilla-transformer distill outputs/big multi30k_student --train_source train.en.gz \\
        --validation_source val.en.gz --validation_target val.de.gz --n_best 4

The teacher translates the sources of the recipe's training text; the student of the recipe learns these translations
instead of the references. They are kept in output_dir/distillation. The same command continues after an interruption,
in the translations or in the training. Any field of the recipe can be set, as for train, whose --help-all shows them;
its --teacher is distillation at each word.
"""

from pathlib import Path

from ..common.command_line import make_parser, read_count
from .train import find_recipe, train


def main(prog: str, argv: list[str]) -> None:
    usage = f"{prog} TEACHER RECIPE [options] [--field value ...]"
    parser = make_parser(prog, __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("teacher", metavar="TEACHER", help="folder of a model, or the id of a Hub repository")
    parser.add_argument("recipe", metavar="RECIPE", help="file or name of the student's recipe")
    parser.add_argument(
        "--n_best", type=int, default=1, metavar="N", help="translations of each sentence to learn (default: 1)"
    )
    parser.add_argument(
        "--teacher_beams", type=int, metavar="N", help="beams of the teacher (default: what it was saved with)"
    )
    parser.add_argument(
        "--teacher_processes",
        type=read_count,
        default=1,
        metavar="N",
        help="most processes that translate; auto: as many as lines, idle cores and memory allow (default: 1)",
    )
    parser.add_argument(
        "--teacher_threads",
        type=read_count,
        metavar="N",
        help="threads of these together; auto: as many as there are idle cores (default: one for each core)",
    )
    arguments, others = parser.parse_known_args(argv)
    from ..training.data.corpus import hub_id
    from ..training.recipe import OF_TEXT, RecipeParser
    from ..training.synthetic.translations import translate_training_text

    recipes, path = RecipeParser(prog=prog), find_recipe(arguments.recipe)
    _, given, unset = recipes.read_line(others)
    recipe = recipes.override(recipes.read(path), given, unset, told=prog)
    run, _ = recipes.run(recipe, path)
    if "train_target" in given and not run.data.reverse:
        parser.error("--train_target has no effect: the student learns the teacher's translations of --train_source")
    if run.data.task != "translation":
        parser.error(f"the recipe has task={run.data.task}: only translation models are distilled")
    streams = {"processes": arguments.teacher_processes, "threads": arguments.teacher_threads}
    pairs = translate_training_text(run, arguments.teacher, arguments.n_best, arguments.teacher_beams, streams)
    print(f"teacher's translations: {pairs}", flush=True)
    named = run.data.corpus_name or hub_id(run.data.train_source)  # a file is not named after its data set
    fields = {"train_source": str(pairs), "corpus_name": named}
    student, settings = recipes.run(recipes.override(recipe, fields, OF_TEXT["train_source"]), path)
    best = "translation" if arguments.n_best == 1 else f"{arguments.n_best} best translations"
    teacher = hub_id(arguments.teacher) or Path(arguments.teacher).name
    about = f"Distilled: it learned the {best} that its teacher {teacher} gave to each source."
    train(prog, student, settings, about)
