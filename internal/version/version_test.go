// SPDX-License-Identifier: Apache-2.0

package version

import (
	"regexp"
	"testing"
)

func TestVersionIsDirectoryNameAndTag(t *testing.T) {
	if ok := regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`).MatchString(Version); !ok {
		t.Errorf("version %q cannot name a directory and an image tag", Version)
	}
}
