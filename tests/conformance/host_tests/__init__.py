"""The test modules of transformers as one package, together with our stand-ins for those that are not distributed.

The modules of the source distribution come first, so a stand-in steps back as soon as a release carries the real
module. A stand-in holds only the names that the distributed modules import.
"""

from run import host_tests_folder


__path__.insert(0, str(host_tests_folder()))
