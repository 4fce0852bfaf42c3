// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package top

import "os"

// interpretEscapes does nothing, because these terminals always interpret escape sequences.
func interpretEscapes(*os.File) (restore func() error, err error) {
	return func() error { return nil }, nil
}
