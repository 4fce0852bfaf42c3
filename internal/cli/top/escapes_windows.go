// SPDX-License-Identifier: Apache-2.0

package top

import (
	"os"

	"golang.org/x/sys/windows"
)

// interpretEscapes makes a terminal interpret escape sequences. The returned function restores the
// terminal.
func interpretEscapes(out *os.File) (restore func() error, err error) {
	terminal := windows.Handle(out.Fd())
	var before uint32
	if err := windows.GetConsoleMode(terminal, &before); err != nil {
		return nil, err
	}
	if err := windows.SetConsoleMode(terminal, before|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING); err != nil {
		return nil, err
	}
	return func() error { return windows.SetConsoleMode(terminal, before) }, nil
}
