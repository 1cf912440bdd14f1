"""Mean of the weights of several training states: the ends of two runs of one model, averaged, are better than either."""

import argparse

import torch


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("states", nargs="+", help="FILE:model for a state's running average, FILE:last for its last weights")
    a.add_argument("--output", required=True)
    a = a.parse_args()
    states = []
    for name in a.states:
        path, _, which = name.rpartition(":")
        states.append(torch.load(path)[which])
    mean = {k: sum(s[k].float() for s in states) / len(states) for k in states[0]}
    torch.save({"model": mean, "last": mean}, a.output)


if __name__ == "__main__":
    main()
