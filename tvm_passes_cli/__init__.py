"""What the console command does before `tvm_passes` is imported: `main` parses the options of `options`.

That import takes a second or more, since it imports TVM. Help, wrong arguments and Ctrl-C do not wait for it:
nothing at the top of these files imports another package of this project.
"""
