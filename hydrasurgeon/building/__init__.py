"""build: what serves best within a budget, chosen by measuring and made by the other commands.

`members` says what could be chosen, `budgets` and `clock` what it costs, `answers` keeps what each
answered; `search_space` makes candidates, the quickest first; `choosing` decides, by the figures of
`table`; `front` does so for every budget, and writes what is decided. `plan` says what is ahead,
`work` what lies in the work folder.
"""
