# SPDX-License-Identifier: Apache-2.0
# This file adds the rules of the simulated NVML to gpusim/Makefile.

$(OUT)/gen/nvml_stubs.h: data/libnvidia-ml-exports.txt
	@mkdir -p $(@D)
	sed 's/.*/STUB(&)/' $< >$@
$(OUT)/obj/nvml/stubs.o: $(OUT)/gen/nvml_stubs.h

NVML_TEST = $(OUT)/test/nvml_test
$(NVML_TEST): $(OUT)/obj/nvml/test/nvml_test.o $(call objects,$(CORE))
	@mkdir -p $(@D)
	$(CC) $(SANITIZE) -pthread -o $@ $^ -ldl

.PHONY: nvml-test
nvml-test: $(LIBNVML) $(NVML_TEST)
	$(NVML_TEST) $(LIBNVML)
test: nvml-test
