from openloop.cli import main

main()
