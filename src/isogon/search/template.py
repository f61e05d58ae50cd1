"""`TEMPLATE`: a study file to begin from, with every key and what it is for; it runs as it is."""

from __future__ import annotations

TEMPLATE = """\
# A study of isogon search. It runs as it is, in a few minutes on two cores:
#
#     isogon search study.toml
#
# Lines that begin with # are the defaults, or another choice.

# The full run. Write "?" for what you do not know: weight_decay, or lr.
[recipe]
# optimizer = "sgd"             # or "nesterov", "adamw"
lr = 1.0                        # the peak of the schedule
weight_decay = "?"
# momentum = 0.9                # β₁ for adamw
# beta2 = 0.999                 # for adamw alone
batch_size = 32
samples = 8000                  # training samples of the full run
epochs = 24                     # every trial has as many, whatever its samples

# What to train: a task of isogon's lab, as below, or your own code. Your own code is one line instead of all others:
# objective = "file.py:function", which gets a trial (recipe, seed, folder, device, report) and returns the
# metric: the accuracy, from 0 to 1, unless you name another.
[task]
# metric = "accuracy"           # or "loss"; your own objective's may have any name
# direction = "maximize"        # or "minimize", as for a loss
net = "cnn4"                    # a function of isogon.nets, or "file.py:function"
net_options = { width = 6, scale_invariant = "affine", norm = "ghost", ghost_batch = 32 }
data = "fashion-mini"           # comes with isogon; others: "cifar10", "cifar100", "mnist", "digits", …
# data_root = "/data"           # the folder of data that do not come with isogon
augmentation = "none"           # "crop-flip" is usual for photographs
# schedule = "step"             # ÷ 10 at 50 % and 75 % of the run; or "cosine", "constant", …
# precision = "float32"         # or "bfloat16", "float64"
# last_batch = "drop"           # or "keep"
# monitor_every = 50            # steps between measurements of the weights; 0 for none

# How to look. The whole grid is trained at the smallest fraction, three tuning factors round its top at each other.
[search]
fractions = ["1/16", "1/8"]     # of the samples
# The tuning factor is F = samples · lr · weight_decay / (batch_size · (1 − momentum)).
centre = 0.125                  # the middle of the grid: your guess of the best one; 10/128 unless given
# size = 7                      # tuning factors of the grid, ×2 apart, an odd number
# grid = [0.05, 0.1, 0.2, 0.4]  # or these, instead of centre and size
# seeds = 3                     # runs of each tuning factor; more make the answer surer
# sampler = "grid"              # or "tpe", "gp", "random": Optuna chooses the first ones within the grid's range
# trials = 7                    # how many it chooses; as many as the grid has unless given
# pruner = "none"               # or "median", "hyperband": stop trials early, which may mislead
# verify = false                # true: train the answer and both ends of its interval at the full size too

# On what to run it; none of this changes the answer but for noise.
[run]
# engine = "local"              # one training in each process; "lanes": several at once, for GPUs; "ray": on a cluster
# workers = 2                   # processes; all cores unless given, one on a GPU
# device = "cpu"                # "cuda" where there is one, unless given
# storage = "sqlite"            # study.db in the output folder; or "postgresql://user@host/database"
# name = "my-study"             # the study's name in a shared storage; that of the output folder unless given
# ray = { cpus = 1 }            # what each trial asks of the cluster; gpus, retries and address too
"""
