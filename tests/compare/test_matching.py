from cnnbench.compare.matching import groups, match
from cnnbench.metrics.comparable_facts import expand


def names(pairs):
    """Pairs as batch sizes, with "xla" where that is on; None for a side that lacks it."""

    def name(group):
        if group is None:
            return None
        flags = group.configuration.flags
        return f"{flags['model']} {flags['batch_size']}{' xla' if flags['xla'] else ''}"

    return sorted(((name(one), name(other)) for one, other in pairs), key=str)


def matched(base, new, *allowed):
    return names(match(*groups(base, new), expand(allowed)))


def test_repeats_come_together_in_order_of_their_start(runs):
    first, second, other = runs(), runs(), runs(flags={"batch_size": 16})
    (found,) = groups([other, second, first])
    assert [[record.run_id for record in group.records] for group in found] == [
        [first.run_id, second.run_id],
        [other.run_id],
    ]


def test_starts_are_moments_not_texts(runs):
    first = runs(started_at="2026-11-20T23:30:00+09:00")
    second = runs(started_at="2026-11-20T10:00:00-05:00")
    third = runs(started_at="2026-11-20T15:30:00Z")
    (found,) = groups([third, second, first])
    assert [[one.run_id for one in group.records] for group in found] == [
        [first.run_id, second.run_id, third.run_id]
    ]


def test_equal_configurations_are_matched_whatever_their_order(runs):
    base = [runs(flags={"batch_size": size}) for size in (8, 16, 32)]
    new = [runs(flags={"batch_size": size}) for size in (32, 8, 16)]
    assert matched(base, new) == [
        ("lenet 16", "lenet 16"),
        ("lenet 32", "lenet 32"),
        ("lenet 8", "lenet 8"),
    ]


def test_what_only_one_side_has_stays_alone(runs):
    shared = {"model": "resnet20"}
    base = [runs(flags=shared), runs()]
    new = [runs(flags=shared), runs(flags={"model": "alexnet"})]
    # lenet and alexnet are the only ones left, so they are taken for what was meant.
    assert matched(base, new) == [("lenet 8", "alexnet 8"), ("resnet20 8", "resnet20 8")]
    new.append(runs(flags={"model": "vgg11"}))
    assert matched(base, new) == [
        ("lenet 8", None),
        ("resnet20 8", "resnet20 8"),
        (None, "alexnet 8"),
        (None, "vgg11 8"),
    ]


def test_the_nearest_variants_are_put_side_by_side(runs):
    base = [runs(), runs(flags={"xla": True})]
    new = [
        runs(flags={"batch_size": 16, "xla": True}),
        runs(flags={"batch_size": 16}),
        runs(flags={"model": "vgg11"}),
    ]
    assert matched(base, new) == [
        ("lenet 8 xla", "lenet 16 xla"),
        ("lenet 8", "lenet 16"),
        (None, "vgg11 8"),
    ]


def test_what_may_differ_is_looked_through(runs):
    base = [runs(flags={"xla": False, "batch_size": size}) for size in (8, 16)]
    new = [runs(flags={"xla": True, "batch_size": size}) for size in (16, 8)]
    assert matched(base, new, "xla") == [
        ("lenet 16", "lenet 16 xla"),
        ("lenet 8", "lenet 8 xla"),
    ]


def test_configurations_of_a_side_do_not_melt_into_one_by_what_may_differ(runs):
    both = [runs(flags={"xla": False}), runs(flags={"xla": True})]
    again = [runs(flags={"xla": True}), runs(flags={"xla": False})]
    assert matched(both, again, "xla") == [("lenet 8 xla", "lenet 8 xla"), ("lenet 8", "lenet 8")]


def test_a_run_that_failed_early_joins_its_configuration(runs):
    early = runs(None, flags={"device": "auto"}, placement=None, error=("OSError", "no"))
    base, new = groups([runs(), runs()], [early])
    ((one, other),) = match(base, new)
    assert one is not None
    assert other is not None
    assert one.configuration.key == other.configuration.key
    # And on its own side.
    ((found,),) = groups([runs(), early])
    assert len(found.records) == 2


def test_a_run_that_failed_early_joins_nothing_where_it_could_be_several(runs):
    early = runs(None, flags={"device": "auto"}, placement=None, error=("OSError", "no"))
    on_two = [runs(), runs(flags={"num_intra_threads": 1})]
    (found,) = groups([*on_two, early])
    assert len(found) == 3
